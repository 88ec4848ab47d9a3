#include "phalanx/data/order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <vector>

#include "phalanx/base/error.h"

namespace phalanx {
namespace {

std::vector<int64_t> permutation(uint64_t seed, int64_t epoch, int64_t count) {
  std::vector<int64_t> order(count);
  for (int64_t i = 0; i < count; ++i) order[i] = shuffled(seed, epoch, i, count);
  return order;
}

TEST(Order, IsAPermutationForEveryCount) {
  for (int64_t count = 1; count <= 300; ++count)
    for (uint64_t seed : {0, 1}) {
      auto order = permutation(seed, 3, count);
      std::sort(order.begin(), order.end());
      std::vector<int64_t> all(count);
      std::iota(all.begin(), all.end(), 0);
      ASSERT_EQ(order, all) << count << " samples, seed " << seed;
    }
  auto large = permutation(7, 0, 100'003);
  EXPECT_EQ(std::set<int64_t>(large.begin(), large.end()).size(), 100'003u);
}

TEST(Order, HandlesHugeCountsWithoutATable) {
  const int64_t count = (int64_t{1} << 40) + 12345;
  std::set<int64_t> seen;
  for (int64_t i = 0; i < 1000; ++i) {
    const int64_t sample = shuffled(1, 0, count - 1 - i, count);
    EXPECT_TRUE(0 <= sample && sample < count);
    EXPECT_TRUE(seen.insert(sample).second);
  }
}

TEST(Order, SpreadsEveryIndexEvenly) {
  // Over 6000 seeds, index 0 of 6 samples must land on each about 1000 times (deviation 29).
  std::map<int64_t, int> counts;
  for (uint64_t seed = 0; seed < 6000; ++seed) ++counts[shuffled(seed, 0, 0, 6)];
  for (const auto& [sample, count] : counts) EXPECT_NEAR(count, 1000, 150) << sample;
  // All 24 orders of 4 samples appear.
  std::set<std::vector<int64_t>> orders;
  for (uint64_t seed = 0; seed < 1000; ++seed) orders.insert(permutation(seed, 0, 4));
  EXPECT_EQ(orders.size(), 24u);
}

TEST(Order, NeighboursAreUnrelated) {
  const auto order = permutation(5, 0, 10'000);
  int close = 0;
  for (size_t i = 1; i < order.size(); ++i) close += std::abs(order[i] - order[i - 1]) < 100;
  EXPECT_LT(close, 400);  // 2 % expected
}

TEST(Order, EpochsDifferAndEverySampleComesOncePerEpoch) {
  std::set<std::vector<int64_t>> epochs;
  for (int64_t epoch = 0; epoch < 50; ++epoch) epochs.insert(permutation(1, epoch, 25));
  EXPECT_EQ(epochs.size(), 50u);
  EXPECT_NE(permutation(1, 0, 25), permutation(2, 0, 25));

  std::map<int64_t, int> times;
  for (int64_t consumed = 0; consumed < 75; ++consumed) ++times[sample_at(9, consumed, 25)];
  for (int64_t sample = 0; sample < 25; ++sample) EXPECT_EQ(times[sample], 3) << sample;
}

// A changed constant would silently reorder every run that goes on from a checkpoint.
TEST(Order, IsFrozen) {
  EXPECT_EQ(permutation(0, 0, 10), (std::vector<int64_t>{9, 4, 5, 3, 0, 8, 2, 6, 1, 7}));
  EXPECT_EQ(shuffled(1234, 5, 67, 1'000'000), 281268);
}

TEST(Order, RefusesIndicesOutside) {
  EXPECT_THROW(shuffled(0, 0, 5, 5), Error);
  EXPECT_THROW(shuffled(0, -1, 0, 5), Error);
}

}  // namespace
}  // namespace phalanx
