#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "phalanx/checkpoint/manifest.h"

namespace phalanx {

/// XXH3-128 of data that comes in pieces.
class Hasher {
 public:
  Hasher();
  ~Hasher();
  Hasher(const Hasher&) = delete;
  void operator=(const Hasher&) = delete;
  void add(const void* data, int64_t bytes);
  Hash result() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

Hash hash_of(const void* data, int64_t bytes);
std::string to_hex(const Hash& hash);  ///< 32 digits, as `xxhsum -H2` prints it
Hash hash_from_hex(const std::string& digits);

}  // namespace phalanx
