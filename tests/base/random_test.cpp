#include "phalanx/base/random.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace phalanx {
namespace {

TEST(Random, PhiloxGivesThePublishedVectors) {
  // Known-answer vectors of the authors' Random123 (philox4x32, 10 rounds).
  EXPECT_EQ(philox({0, 0}, {0, 0, 0, 0}),
            (RandomBlock{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({~0u, ~0u}, {~0u, ~0u, ~0u, ~0u}),
            (RandomBlock{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0xa4093822, 0x299f31d0}, {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}),
            (RandomBlock{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

// The same stream by the textbook formulas and the C library.
double reference_normal(RandomKey key, uint64_t index) {
  const RandomBlock w = philox(key, {uint32_t(index / 2), uint32_t(index / 2 >> 32), 0, 0});
  auto unit = [](uint32_t low, uint32_t high) {
    return std::ldexp(double((uint64_t(high) << 20) | (low >> 12)), -52);
  };
  const double radius = std::sqrt(-2 * std::log(1 - unit(w[0], w[1])));
  const double angle = 2 * M_PI * unit(w[2], w[3]);
  return radius * (index % 2 ? std::sin(angle) : std::cos(angle));
}

TEST(Random, NormalNumbersFollowTheFormulaAndTheBellCurve) {
  const RandomKey key = random_key(7, "h.0.attn.c_attn.weight");
  std::vector<double> values(100001);
  fill_normal(key, 5, int64_t(values.size()), 1.0, values.data());
  double sum = 0, squares = 0, fourths = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    ASSERT_NEAR(values[i], reference_normal(key, 5 + i), 4e-14) << i;
    sum += values[i], squares += values[i] * values[i], fourths += std::pow(values[i], 4);
  }
  const double n = double(values.size());
  EXPECT_NEAR(sum / n, 0, 5 / std::sqrt(n));
  EXPECT_NEAR(squares / n, 1, 5 * std::sqrt(2 / n));
  EXPECT_NEAR(fourths / n, 3, 5 * std::sqrt(96 / n));
  // A golden value: streams must never change, checkpoints and comparisons rely on them.
  EXPECT_TRUE((random_key(0, "") == RandomKey{3190854284u, 2797324508u}));
}

uint64_t fnv1a(const void* data, size_t bytes) {
  uint64_t hash = 0xCBF29CE484222325u;
  for (size_t i = 0; i < bytes; ++i)
    hash = (hash ^ static_cast<const uint8_t*>(data)[i]) * 0x100000001B3u;
  return hash;
}

// Whatever the CPU, the compiler and its level of optimization.
TEST(Random, NormalNumbersHaveTheSameBitsOnEveryMachine) {
  const RandomKey key = random_key(7, "h.0.attn.c_attn.weight");
  std::vector<double> wide(100001);
  std::vector<float> narrow(wide.size());
  fill_normal(key, 5, int64_t(wide.size()), 1.0, wide.data());
  fill_normal(key, 5, int64_t(narrow.size()), 0.02, narrow.data());
  EXPECT_EQ(fnv1a(wide.data(), wide.size() * sizeof(double)), 0x6e593176af1c65bdu);
  EXPECT_EQ(fnv1a(narrow.data(), narrow.size() * sizeof(float)), 0x19481a63695468ecu);
}

TEST(Random, ARangeIsACutOfTheWhole) {
  const RandomKey key = random_key(1, "w");
  std::vector<float> all(1000), part(1000);
  const uint64_t base = (uint64_t{1} << 33) - 300;  // crosses where the counter's low word wraps
  fill_normal(key, base, 1000, 0.02, all.data());
  for (int64_t begin : {0, 1, 2, 63, 64, 65, 500, 999})
    for (int64_t count : {0, 1, 2, 3, 64, 127, 400}) {
      if (begin + count > 1000) continue;
      fill_normal(key, base + uint64_t(begin), count, 0.02, part.data());
      for (int64_t i = 0; i < count; ++i) ASSERT_EQ(part[size_t(i)], all[size_t(begin + i)]);
    }
}

TEST(Random, KeysDependOnSeedNameAndIndex) {
  EXPECT_FALSE(random_key(1, "a") == random_key(2, "a"));
  EXPECT_FALSE(random_key(1, "a") == random_key(1, "b"));
  EXPECT_FALSE(random_key(1, "a", 0) == random_key(1, "a", 1));
  EXPECT_TRUE(random_key(1, "a", 3) == random_key(1, "a", 3));
  double low = 1, high = 0;
  for (uint64_t i = 0; i < 1000; ++i) {
    const double u = uniform(random_key(1, "u"), i);
    low = std::min(low, u), high = std::max(high, u);
  }
  EXPECT_TRUE(low >= 0 && low < 0.01 && high > 0.99 && high < 1);
}

}  // namespace
}  // namespace phalanx
