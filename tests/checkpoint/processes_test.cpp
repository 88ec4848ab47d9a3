#include <gtest/gtest.h>
#include <sys/wait.h>

#include <csignal>
#include <numeric>

#include "phalanx/base/files.h"
#include "phalanx/checkpoint/checkpoint.h"
#include "tests/checkpoint/state_of_test.h"
#include "tests/support/ranks.h"

namespace phalanx {
namespace {

const std::vector<testing::Role> roles = {{"parameter", at::kFloat, true},
                                          {"exp_avg", at::kFloat, true}};

std::unique_ptr<Communicator> everyone(World& world) {
  std::vector<int> ranks(world.info().size);
  std::iota(ranks.begin(), ranks.end(), 0);
  return world.group("world", ranks);
}

void save(World& world, const std::string& folder, int64_t step) {
  const auto group = everyone(world);
  const auto state = testing::flat_state(testing::small_model(), roles, group->rank(),
                                         group->size(), true, static_cast<int>(step));
  save_checkpoint(*group, folder, {.step = step}, state, 2);
}

// Saved by 3 processes, resumed by 1, 2 and 4; over either transport, and one's by the other's.
TEST(Processes, SaveAndResumeOnOtherNumbersOfRanksAndTransports) {
  for (Transport saver : {Transport::shared_memory, Transport::gloo}) {
    const std::string folder = testing::temporary_folder() + "/checkpoints";
    testing::run_ranks(3, [&](World& world) { save(world, folder, 1); }, {.transport = saver});
    for (const auto& [ranks, loader] : {std::pair{1, Transport::shared_memory},
                                        {2, Transport::gloo},
                                        {4, Transport::shared_memory},
                                        {4, Transport::gloo}})
      testing::run_ranks(
          ranks,
          [&, ranks = ranks](World& world) {
            const auto group = everyone(world);
            prepare_checkpoints(*group, folder);
            const auto path = newest_checkpoint(*group, folder);
            ASSERT_TRUE(path);
            const auto state =
                testing::flat_state(testing::small_model(), roles, group->rank(), ranks, false);
            EXPECT_EQ(load_checkpoint(*group, *path, state, {.verify_hashes = true}).step, 1);
            EXPECT_EQ(testing::differences(state, 1), "");
          },
          {.transport = loader});
  }
}

// A failing disk on one rank ends the save on all of them with its sentence, and they can save
// again.
TEST(Processes, OneFailingRankIsToldToAll) {
  const std::string folder = testing::temporary_folder();
  testing::run_ranks(3, [&](World& world) {
    if (world.info().rank == 2)
      set_disk_hook([](std::string_view operation, const std::string& path) {
        if (operation == "sync" && path.ends_with(".safetensors"))
          fail(ExitCode::checkpoint, "cannot flush ", path, ": Input/output error");
      });
    std::string said;
    try {
      save(world, folder, 1);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::checkpoint);
      said = error.what();
    }
    EXPECT_NE(said.find("rank 2: cannot flush"), std::string::npos) << said;
    set_disk_hook(nullptr);
  });
  testing::run_ranks(2, [&](World& world) { save(world, folder, 2); });
  EXPECT_EQ(read_file(folder + "/latest", ExitCode::checkpoint), "step-2\n");
}

// A rank that is killed while it writes: the others end with an error soon, the older checkpoint is
// what the next run finds.
TEST(Processes, AKilledRankLeavesTheOlderCheckpoint) {
  const std::string folder = testing::temporary_folder();
  testing::run_ranks(2, [&](World& world) { save(world, folder, 1); });
  const auto statuses = testing::fork_ranks(
      2,
      [&](const WorldInfo& info) {
        const auto world = World::join(info, {.transport = Transport::shared_memory});
        if (info.rank == 1)
          set_disk_hook([](std::string_view, const std::string& path) {
            if (path.ends_with(".safetensors")) raise(SIGKILL);
          });
        save(*world, folder, 2);
        return 0;
      },
      std::chrono::seconds(30));
  EXPECT_TRUE(WIFSIGNALED(statuses[1]));
  ASSERT_TRUE(WIFEXITED(statuses[0])) << "rank 0 was still waiting";
  EXPECT_EQ(WEXITSTATUS(statuses[0]), static_cast<int>(ExitCode::peer_lost));
  testing::run_ranks(1, [&](World& world) {
    const auto group = everyone(world);
    prepare_checkpoints(*group, folder);
    EXPECT_EQ(newest_checkpoint(*group, folder), folder + "/step-1");
  });
}

}  // namespace
}  // namespace phalanx
