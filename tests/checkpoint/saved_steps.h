#pragma once

// Checkpoints of made-up states, each told from its step.

#include <gtest/gtest.h>

#include <filesystem>
#include <numeric>
#include <set>

#include "phalanx/base/files.h"
#include "phalanx/checkpoint/checkpoint.h"
#include "phalanx/checkpoint/checkpointer.h"
#include "phalanx/checkpoint/folder.h"
#include "tests/checkpoint/state_of_test.h"
#include "tests/support/ranks.h"

namespace phalanx {

using testing::flat_state;
using testing::ThreadRanks;

inline const std::vector<testing::Role> roles = {
    {"parameter", at::kFloat, true}, {"exp_avg", at::kDouble, true}, {"count", at::kLong, false}};

inline std::vector<StateEntry> state_at(const Communicator& world, int64_t step,
                                        bool filled = true) {
  return flat_state(testing::small_model(), roles, world.rank(), world.size(), filled,
                    static_cast<int>(step));
}

inline RunState run_at(int64_t step) {
  return {.step = step, .consumed_samples = 10 * step, .values = {{"updates", step}}};
}

inline void save_at(Checkpointer& checkpointer, const Communicator& world, int64_t step) {
  checkpointer.save(run_at(step), state_at(world, step));
}

// Saves the steps one after the other; what every rank threw.
inline std::vector<std::string> save_steps(const std::string& folder, int ranks,
                                           const SaveOptions& options,
                                           const std::vector<int64_t>& steps) {
  return ThreadRanks::run(ranks, [&](Communicator& world) {
    Checkpointer checkpointer(world, folder, options);
    for (int64_t step : steps) save_at(checkpointer, world, step);
    checkpointer.finish();
  });
}

inline void on_ranks(int ranks, const std::function<void(Communicator&)>& body) {
  for (const auto& error : ThreadRanks::run(ranks, body)) EXPECT_EQ(error, "");
}

inline std::set<int64_t> steps_in(const std::string& folder) {
  std::set<int64_t> steps;
  for (const auto& candidate : candidates(*open_storage(folder))) {
    EXPECT_EQ(candidate.defect, "");
    steps.insert(step_of(candidate.name).value());
  }
  return steps;
}

inline int checkpoints_in(const std::string& folder) {
  int whole = 0;
  for (const auto& candidate : candidates(*open_storage(folder))) {
    EXPECT_EQ(candidate.defect, "");
    ++whole;
  }
  return whole;
}

inline std::set<std::string> names_in(const std::string& folder) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    names.insert(entry.path().filename().string());
  return names;
}

// Loads it as another number of ranks and compares every element with those of `step`.
inline void expect_whole(const std::string& path, int64_t step) {
  on_ranks(3, [&](Communicator& world) {
    const auto state = state_at(world, step, false);
    const RunState run = load_checkpoint(world, path, state, {.verify_hashes = true});
    EXPECT_EQ(run.step, step);
    EXPECT_EQ(run.consumed_samples, 10 * step);
    EXPECT_EQ(std::get<int64_t>(run.values.at("updates")), step);
    EXPECT_EQ(testing::differences(state, static_cast<int>(step)), "");
  });
}

struct NoHook {
  ~NoHook() { set_disk_hook(nullptr); }
};

inline std::unique_ptr<Communicator> everyone(World& world) {
  std::vector<int> ranks(world.info().size);
  std::iota(ranks.begin(), ranks.end(), 0);
  return world.group("world", ranks);
}

}  // namespace phalanx
