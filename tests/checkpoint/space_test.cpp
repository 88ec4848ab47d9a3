// Disks without room, before a save, while it writes, and what is deleted to make some.
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>

#include "phalanx/base/files.h"
#include "phalanx/checkpoint/checkpointer.h"
#include "phalanx/checkpoint/folder.h"
#include "tests/checkpoint/saved_steps.h"

namespace phalanx {
namespace {

namespace fs = std::filesystem;

// Runs `body` where `folder` is a file system of that size, in a mount namespace of its own, so
// that nothing stays mounted. To be called last: it may skip the test.
void on_small_disk(const std::string& folder, const std::string& size,
                   const std::function<void()>& body) {
  constexpr int no_right = 77;
  const auto statuses = testing::fork_ranks(1, [&](const WorldInfo&) {
    if (unshare(CLONE_NEWNS) != 0 ||
        mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        mount("tmpfs", folder.c_str(), "tmpfs", 0, ("size=" + size).c_str()) != 0)
      return no_right;
    body();
    return 0;
  });
  if (WEXITSTATUS(statuses[0]) == no_right) GTEST_SKIP() << "no right to mount";
  EXPECT_EQ(statuses[0], 0);
}

std::vector<std::string> save_big(const std::string& folder, int ranks, int64_t step,
                                  int64_t kilobytes_per_rank) {
  return ThreadRanks::run(ranks, [&](Communicator& world) {
    const std::vector<StateEntry> state = {
        whole_entry(text("big.", world.rank()), "parameter",
                    at::full({kilobytes_per_rank << 8}, double(step), at::kFloat))};
    Checkpointer checkpointer(world, folder, {.keep = 0});
    checkpointer.save({.step = step}, state);
  });
}

int64_t entries_of(const std::string& folder) {
  return std::distance(fs::directory_iterator(folder), fs::directory_iterator());
}

TEST(Space, TooLittleSpaceIsFoundBeforeAnythingIsWritten) {
  const std::string folder = testing::temporary_folder();
  on_small_disk(folder, "6m", [&] {
    for (const auto& error : save_big(folder, 2, 1, 2500)) EXPECT_EQ(error, "");
    const auto before = entries_of(folder);
    const auto errors = save_big(folder, 2, 2, 2500);
    EXPECT_EQ(errors[0], errors[1]);
    for (const std::string& fragment :
         {text("cannot save step 2 in ", folder), std::string(": 5120000 bytes wanted, "),
          std::string(" free; remove old checkpoints there, or free some")})
      EXPECT_NE(errors[0].find(fragment), std::string::npos) << errors[0];
    EXPECT_EQ(entries_of(folder), before);
    // Before the first step too.
    const auto early = ThreadRanks::run(1, [&](Communicator& world) {
      Checkpointer checkpointer(world, folder, {.keep = 0});
      checkpointer.prepare(
          std::vector{whole_entry("big", "parameter", at::ones({2 << 20}, at::kFloat))});
    });
    EXPECT_NE(early[0].find("cannot save this run's state in " + folder), std::string::npos)
        << early[0];
    EXPECT_EQ(checkpoints_in(folder), 1);
  });
}

// A smaller `keep` makes the space that the first save needs, but only if the newest is whole and
// if what is deleted is enough.
TEST(Space, AFullDiskIsHelpedByKeepingFewer) {
  const std::string folder = testing::temporary_folder();
  on_small_disk(folder, "9m", [&] {
    for (int64_t step : {1, 2, 3})
      for (const auto& error : save_big(folder, 1, step, 2500)) EXPECT_EQ(error, "");
    const auto prepare = [&](SaveOptions options, int64_t kilobytes = 2500) {
      return ThreadRanks::run(1, [&](Communicator& world) {
        Checkpointer checkpointer(world, folder, options);
        checkpointer.prepare(
            std::vector{whole_entry("big", "parameter", at::ones({kilobytes << 8}, at::kFloat))});
      })[0];
    };
    const std::string file = folder + "/step-3/state-00000-of-00001.safetensors";
    const auto put_last = [&](char byte) {
      const auto end = static_cast<int64_t>(fs::file_size(file)) - 1;
      std::fstream(file, std::ios::in | std::ios::out).seekp(end).put(byte);
    };
    EXPECT_NE(prepare({.keep = 0}).find(" bytes wanted, "), std::string::npos);
    const char last = read_file(file, ExitCode::checkpoint).back();
    EXPECT_NE(prepare({.keep = 1}, 7500).find(" bytes wanted, "), std::string::npos)
        << "deleting would not be enough";
    put_last('\x55');
    EXPECT_NE(prepare({.keep = 1}).find(" bytes wanted, "), std::string::npos);
    EXPECT_EQ(checkpoints_in(folder), 3);
    put_last(last);
    EXPECT_EQ(prepare({.keep = 1, .keep_every = 2}), "");
    EXPECT_FALSE(fs::exists(folder + "/step-1"));
    EXPECT_TRUE(fs::exists(folder + "/step-2")) << "keep_every";
    EXPECT_TRUE(fs::exists(folder + "/step-3"));
  });
}

// A run that goes back, since what came later is of no use: it has nothing else to go on from.
TEST(Space, AFullDiskDoesNotCostTheCheckpointThatTheRunGoesOnFrom) {
  const std::string folder = testing::temporary_folder();
  on_small_disk(folder, "9m", [&] {
    for (int64_t step : {1, 2, 3})
      for (const auto& error : save_big(folder, 1, step, 2500)) EXPECT_EQ(error, "");
    ::testing::internal::CaptureStderr();
    const auto errors = ThreadRanks::run(1, [&](Communicator& world) {
      Checkpointer checkpointer(world, folder, {.keep = 1});
      const std::vector big{whole_entry("big", "parameter", at::ones({2500 << 8}, at::kFloat))};
      checkpointer.prepare(big, folder + "/./step-1");
    });
    EXPECT_EQ(errors[0], "");
    const std::string said = ::testing::internal::GetCapturedStderr();
    EXPECT_NE(said.find("but not " + folder + "/./step-1"), std::string::npos) << said;
    EXPECT_TRUE(fs::exists(folder + "/step-1"));
    EXPECT_FALSE(fs::exists(folder + "/step-2"));
    EXPECT_TRUE(fs::exists(folder + "/step-3"));
  });
}

TEST(Space, TooLittleSpaceInTheLocalFolderIsFoundBeforeAnythingIsWritten) {
  const std::string folder = testing::temporary_folder(), local = testing::temporary_folder();
  on_small_disk(local, "1m", [&] {
    const auto errors = ThreadRanks::run(2, [&](Communicator& world) {
      std::vector<StateEntry> state;
      if (world.rank() == 1)
        state.push_back(whole_entry("big", "parameter", at::ones({2 << 18}, at::kFloat)));
      Checkpointer checkpointer(world, folder, {.local = local});
      checkpointer.prepare(state);
    });
    EXPECT_EQ(errors[0], errors[1]);
    for (const std::string& fragment :
         {"rank 1: cannot save this run's state in " + local_place(local, folder),
          std::string(": 2097152 bytes wanted, ")})
      EXPECT_NE(errors[0].find(fragment), std::string::npos) << errors[0];
  });
}

// The disk fills up after the check: two of four ranks get no space.
TEST(Space, SomeRanksRunOutOfSpaceAndTheOlderCheckpointStaysTheLatest) {
  const NoHook reset;
  const std::string folder = testing::temporary_folder();
  on_small_disk(folder, "4m", [&] {
    for (const auto& error : save_big(folder, 4, 1, 100)) EXPECT_EQ(error, "");
    const auto before = entries_of(folder);
    auto created = std::make_shared<std::atomic<int>>(0);
    set_disk_hook([=](std::string_view operation, const std::string& path) {
      if (operation != "create" || !path.ends_with(".safetensors")) return;
      if (++*created != 3) return;
      std::ofstream other(folder + "/other");  // somebody else's file takes what is left
      const std::string block(4096, 'x');
      while (other.write(block.data(), 4096).flush()) {
      }
    });
    const auto errors = save_big(folder, 4, 2, 500);
    set_disk_hook(nullptr);
    fs::remove(folder + "/other");
    for (const auto& error : errors) EXPECT_EQ(error, errors[0]);
    for (const std::string fragment :
         {"rank ", "-of-00004.safetensors: No space left", "bytes wanted, ", " free"})
      EXPECT_NE(errors[0].find(fragment), std::string::npos) << errors[0];
    EXPECT_EQ(entries_of(folder), before);
    EXPECT_EQ(checkpoints_in(folder), 1);
    EXPECT_EQ(read_file(folder + "/latest", ExitCode::checkpoint), "step-1\n");
    for (const auto& error : save_big(folder, 4, 3, 500)) EXPECT_EQ(error, "");
  });
}

}  // namespace
}  // namespace phalanx
