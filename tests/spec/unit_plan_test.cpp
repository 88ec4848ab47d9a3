#include "phalanx/spec/unit_plan.h"

#include <gtest/gtest.h>

namespace phalanx {
namespace {

ParameterSpec parameter(std::vector<int64_t> shape) {
  return whole_parameter("p", "p", std::move(shape), Kind::weight, {});
}

TEST(UnitPlan, CutsIntoEqualAlignedShardsThatCoverEveryParameterOnce) {
  for (int shards : {1, 2, 3, 8}) {
    const std::vector<ParameterSpec> parameters = {parameter({5, 7}), parameter({1}), parameter({}),
                                                   parameter({100})};
    const UnitPlan plan = plan_unit("unit", parameters, {}, shards);
    EXPECT_EQ(plan.padded, plan.shard_count * shards);
    EXPECT_EQ(plan.shard_count % plan.alignment, 0);
    for (size_t i = 0; i < parameters.size(); ++i) {
      EXPECT_EQ(plan.slots[i].offset % plan.alignment, 0);
      int64_t next = 0;
      for (int shard = 0; shard < shards; ++shard) {
        const auto range = plan.range(i, shard);
        if (range.empty()) continue;
        EXPECT_EQ(range.begin, next);
        next = range.end;
      }
      EXPECT_EQ(next, plan.slots[i].count);
    }
  }
}

TEST(BoxesOfRange, VisitEveryElementInOrder) {
  const std::vector<int64_t> shape = {3, 4, 5};
  for (int64_t begin = 0; begin <= 60; begin += 7)
    for (int64_t end = begin; end <= 60; ++end) {
      std::vector<int64_t> seen;
      for (const Box& box : boxes_of_range(shape, begin, end))
        for (int64_t i = 0; i < box.size[0]; ++i)
          for (int64_t j = 0; j < box.size[1]; ++j)
            for (int64_t k = 0; k < box.size[2]; ++k)
              seen.push_back(((box.offset[0] + i) * 4 + box.offset[1] + j) * 5 + box.offset[2] + k);
      std::vector<int64_t> expected;
      for (int64_t i = begin; i < end; ++i) expected.push_back(i);
      EXPECT_EQ(seen, expected) << begin << " " << end;
    }
}

}  // namespace
}  // namespace phalanx
