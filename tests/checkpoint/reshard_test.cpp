#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "phalanx/checkpoint/box.h"
#include "phalanx/checkpoint/checkpoint.h"
#include "phalanx/checkpoint/plan.h"
#include "phalanx/checkpoint/verify.h"
#include "tests/checkpoint/state_of_test.h"
#include "tests/support/ranks.h"

namespace phalanx {
namespace {

using testing::flat_state;
using testing::ThreadRanks;

void expect_none(const std::vector<std::string>& errors) {
  for (const auto& error : errors) EXPECT_EQ(error, "");
}

std::vector<ParameterSpec> random_model(std::mt19937& random) {
  const auto below = [&](int64_t limit) { return static_cast<int64_t>(random() % limit); };
  std::vector<ParameterSpec> specs;
  for (int i = 0; i < 6; ++i) {
    std::vector<int64_t> shape;
    for (int64_t dims = below(5); dims > 0; --dims)
      shape.push_back(below(8) == 0 ? below(2) : 1 + below(9));
    const std::string name = "p" + std::to_string(i);
    if (!shape.empty() && below(3) == 0)
      specs.push_back(testing::fused(name, shape, below(static_cast<int64_t>(shape.size()))));
    else
      specs.push_back(whole_parameter(name, name, shape, Kind::weight, {}));
  }
  return specs;
}

// Any number of ranks and any strategy into any other, random shapes (scalars, empty, uneven,
// fused) and types: every element arrives, and an all-hash verification finds nothing.
TEST(Reshard, RandomFlatCutsIntoRandomFlatCuts) {
  const std::string folder = testing::temporary_folder();
  const at::ScalarType dtypes[] = {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf,
                                   at::kLong,  at::kInt,    at::kShort,    at::kByte};
  const int counts[] = {1, 2, 3, 4, 8};
  std::mt19937 random(1);
  for (int round = 0; round < 40; ++round) {
    const auto specs = random_model(random);
    const int from = counts[random() % 5], to = counts[random() % 5];
    SCOPED_TRACE(::testing::Message() << "round " << round << ", " << from << " to " << to);
    std::vector<testing::Role> saved = {{"parameter", dtypes[random() % 8], random() % 2 == 0},
                                        {"exp_avg", dtypes[random() % 8], random() % 2 == 0}};
    std::string path;
    expect_none(ThreadRanks::run(from, [&](Communicator& world) {
      const auto state = flat_state(specs, saved, world.rank(), from, true);
      const auto written = save_checkpoint(world, folder, {.step = round}, state, 1);
      if (world.rank() == 0) path = written;
    }));
    EXPECT_EQ(path, folder + "/step-" + std::to_string(round));
    EXPECT_TRUE(content_defects(*open_storage(path), "", read_manifest(path)).empty());
    for (auto& role : saved) role.sharded = random() % 2 == 0;
    expect_none(ThreadRanks::run(to, [&](Communicator& world) {
      const auto state = flat_state(specs, saved, world.rank(), to, false);
      const RunState run = load_checkpoint(world, path, state, {.verify_hashes = round % 2 == 0});
      require(run.step == round, ExitCode::checkpoint, "step ", run.step);
      const std::string wrong = testing::differences(state);
      require(wrong.empty(), ExitCode::checkpoint, wrong);
    }));
  }
}

// Boxes cut along any dimension, as tensor and expert parallelism will write them; each rank keeps
// them in one matrix of its own, so that the views have strides.
std::vector<StateEntry> grid_state(const std::vector<int64_t>& shape, int rows, int columns,
                                   int rank, bool filled) {
  const auto edge = [&](size_t dim, int part, int parts) { return shape[dim] * part / parts; };
  StateEntry entry{"grid", "parameter", Dtype::float32, shape, {}};
  const int row = rank / columns, column = rank % columns;
  Box box = whole_box(shape);
  box.offset[0] = edge(0, row, rows), box.size[0] = edge(0, row + 1, rows) - box.offset[0];
  box.offset[1] = edge(1, column, columns);
  box.size[1] = edge(1, column + 1, columns) - box.offset[1];
  auto padded = box.size;
  padded.back() += 3;
  at::Tensor local = at::full(padded, 254, at::kFloat).narrow(-1, 2, box.size.back());
  if (filled)
    local.copy_(testing::view_of(testing::expected("grid", "parameter", shape, at::kFloat), box));
  entry.parts = {{box, local}};
  return {entry};
}

TEST(Reshard, BoxesAlongAnyDimension) {
  const std::string folder = testing::temporary_folder();
  const std::vector<std::vector<int64_t>> shapes = {{13, 11}, {4, 6000}, {5, 9, 7}};
  for (const auto& shape : shapes)
    for (auto [rows, columns] : {std::pair{1, 1}, {3, 1}, {1, 4}, {2, 2}})
      for (auto [new_rows, new_columns] : {std::pair{1, 1}, {1, 3}, {2, 1}, {3, 2}}) {
        SCOPED_TRACE(::testing::Message() << shape_string(shape) << ": " << rows << "x" << columns
                                          << " to " << new_rows << "x" << new_columns);
        std::string path;
        expect_none(
            ThreadRanks::run(rows * columns, [&, rows = rows, columns = columns](auto& world) {
              const auto state = grid_state(shape, rows, columns, world.rank(), true);
              const auto written = save_checkpoint(world, folder, {.step = 1}, state, 0);
              if (world.rank() == 0) path = written;
            }));
        expect_none(ThreadRanks::run(
            new_rows * new_columns, [&, rows = new_rows, columns = new_columns](auto& world) {
              const auto state = grid_state(shape, rows, columns, world.rank(), false);
              load_checkpoint(world, path, state);
              const std::string wrong = testing::differences(state);
              require(wrong.empty(), ExitCode::checkpoint, wrong);
            }));
      }
}

int64_t bytes_read() {
  std::ifstream counters("/proc/thread-self/io");
  std::string key;
  int64_t value = 0;
  counters >> key >> value;  // rchar
  return value;
}

TEST(Reshard, ReadsOnlyWhatIsNeeded) {
  const std::string folder = testing::temporary_folder();
  const std::vector<ParameterSpec> specs = {
      whole_parameter("a", "a", {1000, 500}, Kind::weight, {}),
      whole_parameter("b", "b", {700, 300}, Kind::weight, {})};
  const std::vector<testing::Role> roles = {{"parameter", at::kFloat, true},
                                            {"exp_avg", at::kFloat, true}};
  expect_none(ThreadRanks::run(2, [&](Communicator& world) {
    save_checkpoint(world, folder, {.step = 1}, flat_state(specs, roles, world.rank(), 2, true), 0);
  }));
  expect_none(ThreadRanks::run(3, [&](Communicator& world) {
    const auto state = flat_state(specs, roles, world.rank(), 3, false);
    int64_t needed = 0;
    for (const auto& entry : state)
      for (const auto& part : entry.parts) needed += static_cast<int64_t>(part.local.nbytes());
    const int64_t before = bytes_read();
    load_checkpoint(world, folder + "/step-1", state);
    const int64_t read = bytes_read() - before;
    require(read < needed * 1.05 && read >= needed, ExitCode::checkpoint, read, " bytes read, ",
            needed, " needed");
  }));
}

TEST(SavePlan, SharesTheWorkOfReplicasAndRefusesContradictions) {
  const auto described = [](std::vector<StateEntry> entries) { return describe_entries(entries); };
  std::vector<StateEntry> replicated;
  for (int i = 0; i < 12; ++i)
    replicated.push_back(
        whole_entry("t" + std::to_string(i), "parameter", at::zeros({100 + i}, at::kFloat)));
  const SavePlan plan =
      plan_save({described(replicated), described(replicated), described(replicated)});
  std::vector<int64_t> load(3);
  for (const auto& part : plan.parts)
    load[part.writer] += plan.entries[part.entry].parts[part.part].bytes;
  EXPECT_EQ(plan.parts.size(), 12u) << "each is written once";
  EXPECT_LT(
      *std::max_element(load.begin(), load.end()) - *std::min_element(load.begin(), load.end()),
      500);

  const auto refused = [&](const std::vector<std::string>& descriptions,
                           const std::string& fragment) {
    try {
      plan_save(descriptions);
      ADD_FAILURE() << "accepted, wanted: " << fragment;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(fragment), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("w (parameter)"), std::string::npos) << error.what();
    }
  };
  const auto rows = [](int64_t begin, int64_t end) {
    return describe_entries(
        std::vector<StateEntry>{{"w",
                                 "parameter",
                                 Dtype::float32,
                                 {6, 2},
                                 {{{{begin, 0}, {end - begin, 2}}, at::zeros({end - begin, 2})}}}});
  };
  plan_save({rows(0, 3), rows(3, 6)});
  refused({rows(0, 3), rows(2, 6)}, "overlap");
  refused({rows(0, 3), rows(4, 6)}, "2 of the 12 elements");
  refused({rows(0, 3), rows(3, 7)}, "outside");
  refused({rows(0, 6), described({whole_entry("w", "parameter", at::zeros({6, 2}, at::kDouble))})},
          "rank 1 as float64[6, 2]");
}

}  // namespace
}  // namespace phalanx
