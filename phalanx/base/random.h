#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace phalanx {

/// Counter-based random numbers: Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy
/// as 1, 2, 3", 2011). A value depends on its key and its counter only, never on how many were
/// drawn before, so every layout of a run draws the same ones. Bits are the same on every machine.
struct RandomKey {
  uint32_t low, high;
  bool operator==(const RandomKey&) const = default;
};

/// A key for `name` under `seed`; `index` tells apart streams of one name (steps, for example).
RandomKey random_key(uint64_t seed, std::string_view name, uint64_t index = 0);

using RandomBlock = std::array<uint32_t, 4>;

/// The four words at `counter`, for `Lanes` counters at once: word w of lane l is words[w][l].
template <int Lanes>
[[gnu::always_inline]] inline void philox(RandomKey key, uint32_t (&words)[4][Lanes]) {
  for (int round = 0; round < 10; ++round) {
    for (int lane = 0; lane < Lanes; ++lane) {
      const uint64_t first = uint64_t{0xD2511F53u} * words[0][lane];
      const uint64_t second = uint64_t{0xCD9E8D57u} * words[2][lane];
      words[0][lane] = uint32_t(second >> 32) ^ words[1][lane] ^ key.low;
      words[2][lane] = uint32_t(first >> 32) ^ words[3][lane] ^ key.high;
      words[1][lane] = uint32_t(second);
      words[3][lane] = uint32_t(first);
    }
    key.low += 0x9E3779B9u;
    key.high += 0xBB67AE85u;
  }
}

RandomBlock philox(RandomKey key, RandomBlock counter);

/// Element `index` of the stream of uniform numbers in [0, 1), 52 bits.
double uniform(RandomKey key, uint64_t index);

/// Elements [begin, begin + count) of the stream of normal numbers with mean 0 and this deviation
/// (Box and Muller 1958, in double precision), rounded to the type of `out`.
void fill_normal(RandomKey key, uint64_t begin, int64_t count, double deviation, double* out);
void fill_normal(RandomKey key, uint64_t begin, int64_t count, double deviation, float* out);

}  // namespace phalanx
