// `phalanx ckpt diff`, and a checkpoint beside a live state.
#include "phalanx/checkpoint/diff.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "phalanx/checkpoint/checkpoint.h"
#include "tests/checkpoint/call_command.h"
#include "tests/checkpoint/state_of_test.h"
#include "tests/support/ranks.h"

namespace phalanx {
namespace {

using testing::ckpt;
using testing::expect;
using testing::flat_state;
using testing::Result;
using testing::ThreadRanks;

Result diff(const std::string& a, const std::string& b, std::vector<std::string> more = {}) {
  more.insert(more.begin(), {"diff", a, b});
  return ckpt(std::move(more));
}

using States = std::function<std::vector<StateEntry>(int rank)>;

std::string save(const std::string& folder, const RunState& run, int ranks, const States& state) {
  std::string path;
  const auto errors = ThreadRanks::run(ranks, [&](Communicator& world) {
    const auto written = save_checkpoint(world, folder, run, state(world.rank()), 0);
    if (world.rank() == 0) path = written;
  });
  EXPECT_EQ(errors[0], "");
  return path;
}

const std::vector<testing::Role> roles = {{"parameter", at::kFloat, true},
                                          {"exp_avg", at::kDouble, true}};

// What `rank` of `ranks` holds of the small model.
States model_on(int ranks) {
  return [ranks](int rank) { return flat_state(testing::small_model(), roles, rank, ranks, true); };
}

TEST(CkptDiff, FindsNothingBetweenLayoutsAndEverythingElse) {
  const std::string folder = testing::temporary_folder();
  const RunState run{.step = 4, .consumed_samples = 40, .config = "[train]\nsteps = 9\n"};
  const std::string two = save(folder + "/two", run, 2, model_on(2)),
                    five = save(folder + "/five", run, 5, model_on(5));
  expect(diff(two, five), 0, {"22 tensors are identical, 0 differ"});
  expect(diff(folder + "/two", five), 0, {"22 tensors"});  // the newest of a folder
  RunState bare = run;
  bare.config.clear();
  bare.values["file"] = std::string(100, 'x');
  expect(diff(five, save(folder + "/bare", bare, 1, model_on(1))), 0,
         {"run: config is there in A, missing in B",
          "run: value file is missing in A, \"" + std::string(59, 'x') + "... in B"});

  // One element of each kind of difference.
  const auto changed = [&](const std::function<void(std::vector<StateEntry>&)>& change) {
    return save(folder + "/other", {.step = 1, .config = "[train]\nsteps = 8\n"}, 1, [&](int) {
      auto state = model_on(1)(0);
      change(state);
      return state;
    });
  };
  const auto find = [](std::vector<StateEntry>& state, const std::string& name,
                       const std::string& role) -> StateEntry& {
    for (auto& entry : state)
      if (entry.name == name && entry.role == role) return entry;
    throw std::runtime_error("no " + name);
  };
  const auto value = changed([&](auto& s) {
    find(s, "cube", "parameter").parts[0].local.view(-1)[17].add_(0.5);
    find(s, "cube", "parameter").parts[0].local.view(-1)[18].sub_(2);
  });
  expect(diff(five, value), 1,
         {"cube (parameter): values, 2 of 60 elements differ, by 2 at most",
          "21 tensors are identical, 1 differ", "run: step is 4 in A, 1 in B",
          "run: config train.steps is 9 in A, 8 in B", "run: consumed_samples is 40 in A"});
  const auto json = nlohmann::json::parse(diff(five, value, {"--json"}).output);
  EXPECT_EQ(json["equal"], false);
  EXPECT_EQ(json["identical"], 21);
  ASSERT_EQ(json["tensors"].size(), 1u);
  EXPECT_EQ(json["tensors"][0]["differing"], 2);
  EXPECT_EQ(json["tensors"][0]["largest"], 2.0);
  const at::Tensor cube = testing::expected("cube", "parameter", {3, 5, 4}, at::kDouble).view(-1);
  at::Tensor other = cube.clone();
  other[17].add_(0.5), other[18].sub_(2);
  EXPECT_NEAR(json["tensors"][0]["relative_norm"].get<double>(),
              ((cube - other).norm() / other.norm()).item<double>(), 1e-12);
  const double relative = json["tensors"][0]["relative_norm"];
  const auto near = [](double tolerance) {
    return std::vector<std::string>{"--tolerance", text(tolerance)};
  };
  expect(diff(five, value, near(1.01 * relative)), 0, {"1 equal within the tolerance, 0 differ"});
  expect(diff(five, value, near(0.99 * relative)), 1, {"1 differ"});

  const auto shapes = changed([&](auto& s) {
    find(s, "norm.bias", "exp_avg").name = "norm.renamed";
    auto& wte = find(s, "wte.weight", "parameter");
    wte = whole_entry("wte.weight", "parameter", at::zeros({33, 8}, at::kFloat));
    auto& scale = find(s, "scale", "exp_avg");
    scale = whole_entry("scale", "exp_avg", scale.parts[0].local.to(at::kFloat));
  });
  expect(diff(five, shapes), 1,
         {"norm.bias (exp_avg): only in A, float64[1]", "norm.renamed (exp_avg): only in B",
          "wte.weight (parameter): other shape, float32[33, 7] and float32[33, 8]",
          "scale (exp_avg): other type, float64[] and float32[]", "19 tensors are identical, 4"});
  expect(diff(shapes, shapes), 0, {"22 tensors are identical"});
  expect(diff(five, shapes, {"--tolerance", "1e-9"}), 1, {"20 tensors are identical, 3 differ"});

  expect(diff(five, folder + "/nothing"), 6, {folder + "/nothing"});
  expect(diff(five, five, {"--tolerance", "-1"}), 2, {"tolerance"});
}

TEST(CkptDiff, OddValuesAndLargeIntegers) {
  const std::string folder = testing::temporary_folder();
  const double nan = std::nan(""), inf = std::numeric_limits<double>::infinity();
  const auto saved = [&](const std::string& name, std::vector<double> values, int64_t large) {
    return save(folder + "/" + name, {.step = 1}, 1, [&](int) {
      return std::vector{whole_entry("x", "parameter", at::tensor(values, at::kDouble)),
                         whole_entry("n", "parameter", at::tensor({large, int64_t{7}}, at::kLong))};
    });
  };
  const auto base = saved("a", {nan, inf, -0.0, 1}, INT64_MAX - 1);
  expect(diff(base, saved("b", {nan, inf, 0.0, 1}, INT64_MAX - 1)), 0, {"2 tensors are identical"});
  expect(diff(base, saved("c", {nan, inf, 0.0, 1}, INT64_MAX - 2)), 1,
         {"n (parameter): values, 1 of 2 elements differ, by 1 at most"});
  expect(diff(base, saved("d", {1, inf, 0.0, 1}, INT64_MAX - 1)), 1,
         {"x (parameter): values, 1 of 4 elements differ, by inf at most"});
  const auto infinite = diff(base, saved("e", {nan, -inf, 0.0, 1}, INT64_MAX - 1), {"--json"});
  expect(infinite, 1, {"\"largest\":\"inf\""});
  expect(diff(base, base, {"--tolerance", "0.1"}), 0, {"2 tensors are identical"});
  const auto tiny = saved("f", {1, 1e-170}, 7), twice = saved("g", {1, 2e-170}, 7);
  expect(diff(tiny, twice), 1, {"x (parameter): values, 1 of 2 elements differ"});
  expect(diff(tiny, twice, {"--tolerance", "1e-9"}), 0, {"1 equal within the tolerance"});
}

TEST(CkptDiff, Booleans) {
  const std::string folder = testing::temporary_folder();
  const auto saved = [&](const std::string& name, int64_t second) {
    const at::Tensor mask = at::tensor({int64_t{1}, second, int64_t{1}}, at::kLong).to(at::kBool);
    return save(folder + "/" + name, {.step = 1}, 1,
                [&](int) { return std::vector{whole_entry("mask", "buffer", mask)}; });
  };
  const auto base = saved("a", 0);
  expect(diff(base, saved("b", 0)), 0, {"1 tensors are identical"});
  expect(diff(base, saved("c", 1)), 1,
         {"mask (buffer): values, 1 of 3 elements differ, by 1 at most"});
}

// Larger than a slice, cut along every dimension.
TEST(CkptDiff, SliceBySlice) {
  const std::string folder = testing::temporary_folder();
  const auto saved = [&](const std::string& name, int64_t at) {
    return save(folder + "/" + name, {.step = 1}, 1, [&](int) {
      at::Tensor values = at::arange(3 << 20, at::kInt);
      if (at >= 0) values[at].add_(1);
      return std::vector{whole_entry("wide", "parameter", values.view({1, 1, 3 << 20})),
                         whole_entry("deep", "parameter", values.view({3, 1 << 19, 2}))};
    });
  };
  const auto base = saved("a", -1);
  for (int64_t at : {0, (1 << 20) - 1, 1 << 20, (3 << 20) - 1})
    expect(diff(base, saved("b", at)), 1,
           {"wide (parameter): values, 1 of 3145728 elements", "deep (parameter): values, 1 of"});
}

}  // namespace
}  // namespace phalanx
