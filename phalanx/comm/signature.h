#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace phalanx {

enum class Collective : uint8_t {
  none,
  all_gather,
  reduce_scatter,
  all_reduce,
  broadcast,
  all_to_all,
  barrier
};
const char* name(Collective collective);

/// What all ranks must agree on in one call.
struct Signature {
  Collective collective = Collective::none;
  int8_t dtype = 0;  ///< at::ScalarType
  uint8_t op = 0;    ///< Op
  uint8_t window = 0;
  int32_t root = -1;
  int64_t elements = 0;            ///< of a rank's part; all_to_all: of a row
  uint64_t unit = 0, purpose = 0;  ///< hash_name()
  bool operator==(const Signature&) const = default;
};

/// "call 17, all_reduce of 100 Float (sum), gradients of blocks.3"
std::string describe(uint64_t number, const Signature& signature, const char* unit,
                     const char* purpose);

uint64_t hash_name(std::string_view name);

/// Cuts what does not fit.
template <size_t capacity>
void copy_text(char (&to)[capacity], std::string_view from) {
  const size_t count = std::min(capacity - 1, from.size());
  std::memcpy(to, from.data(), count);
  to[count] = 0;
}

/// all_reduce up to here: every rank receives all inputs and sums them, on all transports.
constexpr int64_t direct_sum_bytes = 4096;

/// The begin of rank `rank`'s part of `bytes` in larger all_reduces; parts are multiples of 64
/// bytes, except the last.
inline int64_t sum_part(int rank, int size, int64_t bytes) {
  if (rank >= size) return bytes;
  const int64_t each = (bytes / size + 63) / 64 * 64;
  return std::min(bytes, rank * each);
}

}  // namespace phalanx
