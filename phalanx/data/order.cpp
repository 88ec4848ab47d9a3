#include "phalanx/data/order.h"

#include <bit>

#include "phalanx/base/error.h"

namespace phalanx {
namespace {

// The finalizer of splitmix64 (Steele, Lea, Flood 2014). The order of every run depends on these
// constants: do not change them.
uint64_t mix(uint64_t value) {
  value += 0x9e3779b97f4a7c15u;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

}  // namespace

int64_t shuffled(uint64_t seed, int64_t epoch, int64_t index, int64_t count) {
  require(0 <= index && index < count && epoch >= 0, ExitCode::data, "no sample ", index,
          " in epoch ", epoch, " of ", count, " samples");
  // A domain of 2^(2 half) >= count. At least 256, since small halves give few permutations.
  const int bits = std::bit_width(static_cast<uint64_t>(count - 1));
  const int half = bits < 8 ? 4 : (bits + 1) / 2;
  const uint64_t mask = (uint64_t{1} << half) - 1;
  const uint64_t key = mix(mix(seed) ^ static_cast<uint64_t>(epoch));
  uint64_t value = static_cast<uint64_t>(index);
  do {  // steps out of [0, count) lead back into it: the walk stays on the cycle of a permutation
    uint64_t left = value >> half, right = value & mask;
    for (uint64_t round = 0; round < 8; ++round) {
      const uint64_t next = left ^ (mix(mix(key + round) ^ right) & mask);
      left = right;
      right = next;
    }
    value = left << half | right;
  } while (value >= static_cast<uint64_t>(count));
  return static_cast<int64_t>(value);
}

}  // namespace phalanx
