#include "phalanx/spec/layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "phalanx/base/error.h"
#include "phalanx/spec/model.h"

namespace phalanx {
namespace {

using Ranks = std::vector<int>;

TEST(Layout, GroupsOfDenseDimensions) {
  const Degrees degrees{.pp = 2, .dp_replicate = 1, .dp_shard = 2, .cp = 1, .tp = 2};
  EXPECT_EQ(group_ranks(degrees, 5, {Dim::tp}), (Ranks{4, 5}));
  EXPECT_EQ(group_ranks(degrees, 5, {Dim::dp_shard}), (Ranks{5, 7}));
  EXPECT_EQ(group_ranks(degrees, 5, {Dim::pp}), (Ranks{1, 5}));
  EXPECT_EQ(group_ranks(degrees, 5, {Dim::dp_shard, Dim::tp}), (Ranks{4, 5, 6, 7}));
  EXPECT_EQ(group_ranks(degrees, 5, {Dim::pp, Dim::tp}), (Ranks{0, 1, 4, 5}));
  EXPECT_EQ(group_ranks(degrees, 5, {Dim::cp}), (Ranks{5}));
  EXPECT_EQ(group_ranks(degrees, 5, {}), (Ranks{5}));
  EXPECT_EQ(coordinate(degrees, 5, Dim::pp), 1);
  EXPECT_EQ(coordinate(degrees, 5, Dim::dp_shard), 0);
  EXPECT_EQ(coordinate(degrees, 5, Dim::tp), 1);
}

TEST(Layout, GroupsOfExpertDimensions) {
  // dp_shard x cp x tp = 2 x 1 x 4 = edp x ep x etp = 2 x 2 x 2, twice for pp.
  const Degrees degrees{.pp = 2, .dp_shard = 2, .tp = 4, .ep = 2, .etp = 2};
  EXPECT_EQ(group_ranks(degrees, 13, {Dim::etp}), (Ranks{12, 13}));
  EXPECT_EQ(group_ranks(degrees, 13, {Dim::ep}), (Ranks{13, 15}));
  EXPECT_EQ(group_ranks(degrees, 13, {Dim::edp}), (Ranks{9, 13}));
  EXPECT_EQ(group_ranks(degrees, 13, {Dim::edp, Dim::ep}), (Ranks{9, 11, 13, 15}));
  EXPECT_EQ(group_ranks(degrees, 13, {Dim::pp, Dim::etp}), (Ranks{4, 5, 12, 13}));
  EXPECT_EQ(coordinate(degrees, 13, Dim::edp), 1);
  EXPECT_EQ(coordinate(degrees, 13, Dim::ep), 0);
  EXPECT_EQ(coordinate(degrees, 13, Dim::etp), 1);
  // Experts spread over data-parallel ranks alone: tp of one is no special case.
  EXPECT_EQ(group_ranks({.dp_shard = 4, .ep = 4}, 2, {Dim::ep}), (Ranks{0, 1, 2, 3}));
}

// Every degree in {1, 2}: groups along any set of dimensions cut the world into equal parts.
TEST(Layout, GroupsPartitionTheWorld) {
  const std::vector<Dim> dense = {Dim::pp, Dim::dp_replicate, Dim::dp_shard, Dim::cp, Dim::tp};
  for (int bits = 0; bits < 32; ++bits) {
    auto degree = [&](int i) { return bits >> i & 1 ? 2 : 1; };
    const std::vector<int> sizes = {degree(0), degree(1), degree(2), degree(3), degree(4)};
    const Degrees degrees{.pp = sizes[0],
                          .dp_replicate = sizes[1],
                          .dp_shard = sizes[2],
                          .cp = sizes[3],
                          .tp = sizes[4]};
    for (size_t first = 0; first < 5; ++first)
      for (size_t second = 0; second < 5; ++second) {
        const Dims dims = {dense[first], dense[second]};
        const int size = first == second ? sizes[first] : sizes[first] * sizes[second];
        for (int rank = 0; rank < degrees.world(); ++rank) {
          const Ranks group = group_ranks(degrees, rank, dims);
          ASSERT_EQ(static_cast<int>(group.size()), size);
          EXPECT_TRUE(std::is_sorted(group.begin(), group.end()));
          EXPECT_EQ(std::count(group.begin(), group.end(), rank), 1);
          for (int member : group) EXPECT_EQ(group_ranks(degrees, member, dims), group);
        }
      }
  }
}

TEST(Layout, WrongGroupsAreErrors) {
  auto message = [](const std::function<void()>& call) -> std::string {
    try {
      call();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::usage);
      return error.what();
    }
    return "no error";
  };
  EXPECT_NE(message([] {
              group_ranks({.dp_shard = 2}, 0, {Dim::dp_shard, Dim::ep});
            }).find("group dp_shard.ep mixes"),
            std::string::npos);
  EXPECT_NE(message([] { group_ranks({.dp_shard = 2}, 2, {Dim::dp_shard}); }).find("outside"),
            std::string::npos);
  EXPECT_NE(message([] {
              group_ranks({.dp_shard = 3, .ep = 2}, 0, {Dim::ep});
            }).find("ep x etp = 2 x 1 does not divide dp_shard x cp x tp = 3"),
            std::string::npos);
}

TEST(Layout, RulesNameKeyValueAndFix) {
  ModelSpec model;
  EXPECT_TRUE(check(model, {}, 1).empty());
  for (Strategy strategy :
       {Strategy::none, Strategy::optim, Strategy::optim_grads, Strategy::optim_grads_params}) {
    Layout layout{.degree = {.dp_shard = 3}, .strategy = strategy};
    EXPECT_TRUE(check(model, layout, 3).empty()) << name(strategy);
    layout.compute = layout.master = layout.reduce_dtype = Dtype::float64;
    EXPECT_TRUE(check(model, layout, 3).empty());
  }

  using Change = std::function<void(Layout&)>;
  struct Case {
    Change change;
    int world;
    std::string key, fragment;
  };
  const std::string later = " is not available in this version";
  const std::vector<Case> cases = {
      {[](auto& l) { l.degree.dp_shard = 2; }, 3, "parallel",
       "dp_shard 2 x cp 1 x tp 1 = 2 are not"},
      {[](auto& l) { l.degree.dp_shard = 2; }, 1, "parallel", "world of 1 rank;"},
      {[](auto& l) { l.degree.dp_shard = 0; }, 1, "parallel.dp_shard", "= 0 is no degree"},
      {[](auto& l) { l.degree.tp = 2; }, 2, "parallel.tp", "parallel.tp = 2" + later},
      {[](auto& l) { l.degree.cp = 2; }, 2, "parallel.cp", "parallel.cp = 2" + later},
      {[](auto& l) { l.degree.pp = 2; }, 2, "parallel.pp", "parallel.pp = 2" + later},
      {[](auto& l) { l.degree.dp_replicate = 2; }, 2, "parallel.dp_replicate", "= 2" + later},
      {[](auto& l) { l.degree.dp_shard = l.degree.ep = 2; }, 2, "parallel.ep", "= 2" + later},
      {[](auto& l) { l.degree.dp_shard = l.degree.etp = 2; }, 2, "parallel.etp", "= 2" + later},
      {[](auto& l) { l.cut = Cut::per_parameter; }, 1, "parallel.cut", "per_parameter" + later},
      {[](auto& l) { l.compute = Dtype::bfloat16; }, 1, "precision.compute", "bfloat16" + later},
      {[](auto& l) { l.master = Dtype::float16; }, 1, "precision.master", "float16" + later},
      {[](auto& l) { l.reduce_dtype = Dtype::bfloat16; }, 1, "precision.reduce", later},
      {[](auto& l) { l.master = Dtype::float64; }, 1, "precision.master",
       "float64 with precision.compute = float32" + later},
      {[](auto& l) { l.prefetch = -1; }, 1, "parallel.prefetch", "= -1 is no number of units"},
      {[](auto& l) { l.reduce = Reduce::step, l.strategy = Strategy::none; }, 1, "parallel.reduce",
       "has no meaning with parallel.strategy = none"},
      {[](auto& l) { l.reduce = Reduce::step, l.strategy = Strategy::optim; }, 1, "parallel.reduce",
       "parallel.strategy = optim, which"},
      {[](auto&) {}, 0, "world", "world of 0 ranks"},
  };
  for (const Case& wrong : cases) {
    Layout layout;
    wrong.change(layout);
    const auto found = check(model, layout, wrong.world);
    ASSERT_GE(found.size(), 1u) << wrong.key << wrong.fragment;
    EXPECT_EQ(found[0].key, wrong.key);
    EXPECT_NE(found[0].sentence.find(wrong.fragment), std::string::npos) << found[0].sentence;
    if (wrong.world > 0) EXPECT_EQ(found.size(), 1u) << found[1].sentence;
  }

  Layout many;
  many.degree = {.pp = 2, .dp_shard = 3, .ep = 2};
  many.cut = Cut::per_parameter;
  many.compute = Dtype::bfloat16;
  EXPECT_EQ(check(model, many, 5).size(), 6u);  // pp, ep, the product, ep x etp, cut, compute
  many.degree = {.pp = 1 << 20, .dp_replicate = 1 << 20, .dp_shard = 1 << 20, .cp = 1 << 20};
  EXPECT_FALSE(check(model, many, 1).empty());  // no overflow
}

}  // namespace
}  // namespace phalanx
