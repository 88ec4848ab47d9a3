// What ranks tell each other around work on files: errors, and how long they wait.
#include <gtest/gtest.h>

#include <map>

#include "phalanx/checkpoint/agree.h"
#include "phalanx/checkpoint/checkpoint.h"
#include "phalanx/comm/forwarding.h"
#include "tests/checkpoint/state_of_test.h"
#include "tests/support/ranks.h"

namespace phalanx {
namespace {

using testing::ThreadRanks;

TEST(Agree, WhatTheFirstRankReturnsOrThrowsIsTheSameOnAll) {
  for (const std::string& told : {std::string(), std::string("a\0b", 3), std::string(70'000, 'x')})
    for (const auto& error : ThreadRanks::run(3, [&](Communicator& world) {
           const std::string seen = agree_with_first(world, "test", [&] {
             require(world.rank() == 0, ExitCode::usage, "another rank works");
             return told;
           });
           require(seen == told, ExitCode::usage, "it says ", seen.size(), " bytes");
         }))
      EXPECT_EQ(error, "");
  const auto errors = ThreadRanks::run(3, [](Communicator& world) {
    agree_with_first(world, "test", []() -> std::string { fail(ExitCode::usage, "no disk"); });
  });
  for (const auto& error : errors) EXPECT_EQ(error, "rank 0: no disk");
}

// Notes the shortest deadline of the calls of each purpose; 0 is the communicator's own.
class Noting final : public ForwardingCommunicator {
 public:
  Noting() : ForwardingCommunicator(single_communicator("alone")) {}
  Handle all_gather(at::Tensor out, at::Tensor in, const Call& call) override {
    note(call);
    return ForwardingCommunicator::all_gather(std::move(out), std::move(in), call);
  }
  Handle broadcast(at::Tensor inout, int root, const Call& call) override {
    note(call);
    return ForwardingCommunicator::broadcast(std::move(inout), root, call);
  }
  std::map<std::string, std::chrono::milliseconds> deadlines;

 private:
  void note(const Call& call) {
    const auto [place, fresh] =
        deadlines.try_emplace(std::string(call.purpose), std::chrono::milliseconds::max());
    place->second = std::min(place->second, call.deadline);
  }
};

// Hashing, reading or deleting a large checkpoint on one rank takes longer than a collective may.
TEST(Agree, OthersWaitLongForOneThatReadsOrDeletesMuch) {
  const std::string folder = testing::temporary_folder();
  const std::vector<testing::Role> roles = {{"parameter", at::kFloat, true}};
  const auto state = testing::flat_state(testing::small_model(), roles, 0, 1, true);
  Noting world;
  prepare_checkpoints(world, folder);
  const std::string path = save_checkpoint(world, folder, {.step = 1}, state, 0);
  world.deadlines.clear();
  prepare_checkpoints(world, folder);
  EXPECT_EQ(newest_checkpoint(world, folder, {.verify_hashes = true}), path);
  load_checkpoint(world, path, state, {.verify_hashes = true});
  for (const char* purpose : {"candidates", "verify", "read"}) {
    SCOPED_TRACE(purpose);
    ASSERT_TRUE(world.deadlines.contains(purpose));
    EXPECT_GE(world.deadlines.at(purpose), std::chrono::hours(1));
  }
  EXPECT_EQ(world.deadlines.at("fit").count(), 0) << "exchanges without work keep the default";
}

}  // namespace
}  // namespace phalanx
