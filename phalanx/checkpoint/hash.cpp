#include "phalanx/checkpoint/hash.h"

#include <charconv>
#include <cstdio>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "phalanx/base/error.h"

namespace phalanx {

struct Hasher::State {
  XXH3_state_t state;
};

Hasher::Hasher() : state_(std::make_unique<State>()) { XXH3_128bits_reset(&state_->state); }
Hasher::~Hasher() = default;

void Hasher::add(const void* data, int64_t bytes) {
  XXH3_128bits_update(&state_->state, data, static_cast<size_t>(bytes));
}

Hash Hasher::result() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(&state_->state);
  return {hash.high64, hash.low64};
}

Hash hash_of(const void* data, int64_t bytes) {
  const XXH128_hash_t hash = XXH3_128bits(data, static_cast<size_t>(bytes));
  return {hash.high64, hash.low64};
}

std::string to_hex(const Hash& hash) {
  char digits[33];
  std::snprintf(digits, sizeof(digits), "%016llx%016llx", static_cast<unsigned long long>(hash[0]),
                static_cast<unsigned long long>(hash[1]));
  return digits;
}

Hash hash_from_hex(const std::string& digits) {
  Hash hash{};
  bool good = digits.size() == 32;
  for (int half = 0; good && half < 2; ++half) {
    const char* begin = digits.data() + 16 * half;
    good = std::from_chars(begin, begin + 16, hash[half], 16).ptr == begin + 16;
  }
  require(good, ExitCode::checkpoint, "'", digits, "' is no hash of 32 hexadecimal digits");
  return hash;
}

}  // namespace phalanx
