// Disks that fail while a run saves: transient errors, full ones, and leaks.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "phalanx/base/files.h"
#include "phalanx/checkpoint/checkpoint.h"
#include "phalanx/checkpoint/checkpointer.h"
#include "phalanx/checkpoint/folder.h"
#include "tests/checkpoint/saved_steps.h"

namespace phalanx {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

// Starts as a new process would: cleans, finds the newest, loads it, compares every element.
int64_t resumed_step(const std::string& folder, const std::string& local = "") {
  int64_t step = -1;
  const auto errors = ThreadRanks::run(2, [&](Communicator& world) {
    Checkpointer checkpointer(world, folder, {.local = local});
    const auto path = newest_checkpoint(world, folder, local);
    if (!path) return;
    const auto state = flat_state(testing::small_model(), roles, world.rank(), 2, false);
    const RunState run = load_checkpoint(world, *path, state, {.verify_hashes = true});
    const std::string wrong = testing::differences(state, static_cast<int>(run.step));
    require(wrong.empty() && run.consumed_samples == 10 * run.step, ExitCode::checkpoint, wrong);
    if (world.rank() == 0) step = run.step;
  });
  for (const auto& error : errors) EXPECT_EQ(error, "");
  for (const auto& place : {folder, local.empty() ? folder : local_place(local, folder)})
    for (const auto& entry : fs::directory_iterator(place))
      EXPECT_FALSE(entry.path().filename().string().starts_with(".tmp-")) << entry.path();
  return step;
}

int checkpoints_in(const std::string& folder) {
  int whole = 0;
  for (const auto& candidate : candidates(*open_storage(folder))) {
    EXPECT_EQ(candidate.defect, "");
    ++whole;
  }
  return whole;
}

// Killed before every single operation that changes the disk, from the first of the constructor to
// the last of a save that deletes: what was there before, or the new one, is found whole.
TEST(SavingFaults, KilledAnywhereAWholeCheckpointIsLeft) {
  for (const std::string mode : {"keep_every", "async", "local"}) {
    std::map<int64_t, int> resumed;
    bool finished = false;
    int at = 1;
    const std::string before = testing::memory_folder(), folder = testing::memory_folder();
    const std::string local = mode == "local" ? testing::memory_folder() : "";
    SaveOptions options{.keep = 1, .local = local};
    options.keep_every = mode == "keep_every" ? 2 : 0;
    options.async = mode == "async";
    for (const auto& error :
         save_steps(before, 2, {.keep = 1, .keep_every = options.keep_every}, {2, 3}))
      ASSERT_EQ(error, "");
    for (; !finished; ++at) {
      SCOPED_TRACE(::testing::Message() << mode << ", operation " << at);
      ASSERT_LT(at, 200);
      for (const auto& place : {folder, local}) fs::remove_all(place);
      fs::copy(before, folder, fs::copy_options::recursive);
      if (!local.empty()) {
        fs::create_directory(local);
        fs::copy(before, local_place(local, folder), fs::copy_options::recursive);
      }
      const pid_t child = fork();
      if (child == 0) {
        auto count = std::make_shared<std::atomic<int>>(0);
        set_disk_hook([=](std::string_view, const std::string&) {
          if (++*count == at) raise(SIGKILL);
        });
        const auto errors = save_steps(folder, 2, options, {5});
        if (!errors[0].empty()) std::cerr << errors[0] << std::endl;
        _exit(errors[0].empty() ? 0 : 1);
      }
      int status = 0;
      waitpid(child, &status, 0);
      finished = WIFEXITED(status);
      if (finished) ASSERT_EQ(WEXITSTATUS(status), 0);
      const int64_t found = resumed_step(folder, local);
      EXPECT_TRUE(found == 3 || found == 5) << found;
      if (finished) EXPECT_EQ(found, 5);
      if (mode == "keep_every") EXPECT_TRUE(fs::exists(folder + "/step-2/manifest.json"));
      ++resumed[found];
    }
    EXPECT_GT(at, 20) << "operations were not counted";
    EXPECT_TRUE(resumed[3] > 5 && resumed[5] > 2) << mode;
  }
}

// An input/output error that passes is a warning; one that stays is an error of all ranks that
// names the rank and the file.
TEST(SavingFaults, ATransientErrorIsTriedAgainAndALastingOneEndsAllRanks) {
  const NoHook reset;
  for (bool async : {false, true})
    for (const std::string operation : {"write", "sync", "create"})
      for (int failures : {2, 1000}) {
        SCOPED_TRACE(text(operation, " fails ", failures, " times", async ? ", async" : ""));
        const std::string folder = testing::temporary_folder();
        auto left = std::make_shared<std::atomic<int>>(failures);
        auto tried = std::make_shared<std::atomic<int>>(0);
        set_disk_hook([=](std::string_view now, const std::string& path) {
          if (now != operation || path.find("state-00001") == std::string::npos) return;
          ++*tried;
          if ((*left)-- > 0)
            throw SystemError(ExitCode::checkpoint, EIO, text("cannot ", now, " ", path, ": EIO"));
        });
        ::testing::internal::CaptureStderr();
        const auto errors =
            save_steps(folder, 3, {.async = async, .retry_pause = milliseconds(1)}, {1});
        const std::string said = ::testing::internal::GetCapturedStderr();
        set_disk_hook(nullptr);
        EXPECT_NE(said.find("state-00001-of-00003.safetensors: EIO; tried again in 1 ms, 4 tries"),
                  std::string::npos)
            << said;
        if (failures == 2) {
          for (const auto& error : errors) EXPECT_EQ(error, "");
          EXPECT_EQ(resumed_step(folder), 1);
          continue;
        }
        for (const auto& error : errors) {
          EXPECT_EQ(error, errors[0]);
          EXPECT_TRUE(error.starts_with(text("rank 1: cannot ", operation, " ", folder))) << error;
        }
        EXPECT_EQ(*tried, 5);
        EXPECT_EQ(resumed_step(folder), -1);
      }
}

// A full disk is not tried again.
TEST(SavingFaults, NoSpaceAndNoPermissionAreNotTriedAgain) {
  const NoHook reset;
  const std::string folder = testing::temporary_folder();
  for (int number : {ENOSPC, EDQUOT, EACCES}) {
    std::atomic<int> tried = 0;
    set_disk_hook([&](std::string_view operation, const std::string& path) {
      if (operation == "write" && path.find("state-00001") != std::string::npos) {
        ++tried;
        throw SystemError(ExitCode::checkpoint, number, "cannot write");
      }
    });
    EXPECT_EQ(save_steps(folder, 2, {}, {1})[0], "rank 1: cannot write");
    EXPECT_EQ(tried, 1);
  }
}

// --- a small file system, in a mount namespace of its own, so that nothing stays mounted ---

bool mount_small(const std::string& folder, const std::string& size) {
  return unshare(CLONE_NEWNS) == 0 &&
         mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         mount("tmpfs", folder.c_str(), "tmpfs", 0, ("size=" + size).c_str()) == 0;
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
// Something cuts a file of the new checkpoint while it gets its name: the one before stays.
TEST(SavingFaults, ADamagedNewCheckpointDoesNotReplaceTheLastWholeOne) {
  const NoHook reset;
  const std::string folder = testing::memory_folder();
  EXPECT_EQ(save_steps(folder, 1, {.keep = 1}, {1})[0], "");
  set_disk_hook([&](std::string_view operation, const std::string& path) {
    if (operation != "rename" || !path.ends_with("/step-2")) return;
    for (const auto& entry : fs::recursive_directory_iterator(folder))
      if (entry.path().string().find("/.tmp-step-2") != std::string::npos &&
          entry.path().extension() == ".safetensors")
        fs::resize_file(entry.path(), 100);
  });
  EXPECT_EQ(save_steps(folder, 1, {.keep = 1}, {2})[0], "");
  EXPECT_EQ(names_in(folder), (std::set<std::string>{".lock", "latest", "step-1", "step-2"}));
  for (const auto& candidate : candidates(*open_storage(folder)))
    EXPECT_EQ(candidate.defect.empty(), candidate.name == "step-1") << candidate.defect;
}

TEST(SavingFaults, TooLittleSpaceIsFoundBeforeAnythingIsWritten) {
  const std::string folder = testing::temporary_folder();
  const auto statuses = testing::fork_ranks(1, [&](const WorldInfo&) {
    if (!mount_small(folder, "6m")) return 77;
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
    return 0;
  });
  if (WEXITSTATUS(statuses[0]) == 77) GTEST_SKIP() << "no right to mount";
  EXPECT_EQ(statuses[0], 0);
}

// A smaller `keep` makes the space that the first save needs, but only if the newest is whole and
// if what is deleted is enough.
TEST(SavingFaults, AFullDiskIsHelpedByKeepingFewer) {
  const std::string folder = testing::temporary_folder();
  const auto statuses = testing::fork_ranks(1, [&](const WorldInfo&) {
    if (!mount_small(folder, "9m")) return 77;
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
    return 0;
  });
  if (WEXITSTATUS(statuses[0]) == 77) GTEST_SKIP() << "no right to mount";
  EXPECT_EQ(statuses[0], 0);
}

// A run that goes back, since what came later is of no use: it has nothing else to go on from.
TEST(SavingFaults, AFullDiskDoesNotCostTheCheckpointThatTheRunGoesOnFrom) {
  const std::string folder = testing::temporary_folder();
  const auto statuses = testing::fork_ranks(1, [&](const WorldInfo&) {
    if (!mount_small(folder, "9m")) return 77;
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
    return 0;
  });
  if (WEXITSTATUS(statuses[0]) == 77) GTEST_SKIP() << "no right to mount";
  EXPECT_EQ(statuses[0], 0);
}

TEST(SavingFaults, TooLittleSpaceInTheLocalFolderIsFoundBeforeAnythingIsWritten) {
  const std::string folder = testing::temporary_folder(), local = testing::temporary_folder();
  const auto statuses = testing::fork_ranks(1, [&](const WorldInfo&) {
    if (!mount_small(local, "1m")) return 77;
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
    return 0;
  });
  if (WEXITSTATUS(statuses[0]) == 77) GTEST_SKIP() << "no right to mount";
  EXPECT_EQ(statuses[0], 0);
}

// The disk fills up after the check: two of four ranks get no space.
TEST(SavingFaults, SomeRanksRunOutOfSpaceAndTheOlderCheckpointStaysTheLatest) {
  const NoHook reset;
  const std::string folder = testing::temporary_folder();
  const auto statuses = testing::fork_ranks(1, [&](const WorldInfo&) {
    if (!mount_small(folder, "4m")) return 77;
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
    return 0;
  });
  if (WEXITSTATUS(statuses[0]) == 77) GTEST_SKIP() << "no right to mount";
  EXPECT_EQ(statuses[0], 0);
}

// --- wrong data ---

TEST(SavingFaults, AByteThatTheDiskChangedIsFoundBeforeTheCheckpointCounts) {
  const NoHook reset;
  for (bool async : {false, true}) {
    const std::string folder = testing::temporary_folder();
    const SaveOptions options{.async = async, .verify_after_save = true};
    for (const auto& error : save_steps(folder, 2, options, {1})) EXPECT_EQ(error, "");
    set_disk_hook([&](std::string_view operation, const std::string& path) {
      if (operation != "sync" || path.find("state-00001") == std::string::npos) return;
      std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(-1, std::ios::end);
      file.put('\x55');
    });
    const auto errors = save_steps(folder, 2, options, {2});
    set_disk_hook(nullptr);
    EXPECT_EQ(errors[0], errors[1]);
    for (const std::string fragment :
         {"rank 1: ", "state-00001-of-00002.safetensors does not hold what was written", "faulty"})
      EXPECT_NE(errors[0].find(fragment), std::string::npos) << errors[0];
    EXPECT_EQ(resumed_step(folder), 1);
  }
}

// --- many saves ---

int64_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t pages = 0;
  statm >> pages >> pages;
  return pages * sysconf(_SC_PAGESIZE);
}

int64_t count_in(const char* folder) {
  return std::distance(fs::directory_iterator(folder), fs::directory_iterator());
}

TEST(SavingFaults, TwoHundredSavesLeakNothing) {
  for (bool async : {false, true}) {
    SCOPED_TRACE(async);
    const std::string folder = testing::memory_folder();
    struct Use {
      int64_t memory, files, threads;
    };
    std::vector<Use> seen;
    const auto errors = ThreadRanks::run(2, [&](Communicator& world) {
      std::vector<StateEntry> state;
      for (const char* role : {"parameter", "exp_avg"})
        for (int layer = 0; layer < 8; ++layer)
          state.push_back(whole_entry(text("layer.", layer, ".", world.rank()), role,
                                      at::full({1 << 15}, double(layer), at::kFloat)));
      Checkpointer checkpointer(world, folder, {.keep = 1, .async = async});
      for (int64_t step = 1; step <= 200; ++step) {
        checkpointer.save({.step = step}, state);
        if (step != 20 && step != 200) continue;
        checkpointer.finish();
        if (world.rank() == 0)
          seen.push_back(
              {resident_bytes(), count_in("/proc/self/fd"), count_in("/proc/self/task")});
      }
    });
    for (const auto& error : errors) EXPECT_EQ(error, "");
    ASSERT_EQ(seen.size(), 2u);
#ifndef PHALANX_SANITIZED  // which keeps what is freed
    EXPECT_LT(seen[1].memory, 1.05 * double(seen[0].memory));
#endif
    EXPECT_EQ(seen[1].files, seen[0].files);
    EXPECT_LE(seen[1].threads, 5);  // this one, the ranks, and what they write with
    EXPECT_EQ(checkpoints_in(folder), 1);
  }
}

TEST(SavingFaults, EightRanksSavingEveryStep) {
  const std::string folder = testing::memory_folder();
  std::vector<int64_t> steps(50);
  for (size_t i = 0; i < steps.size(); ++i) steps[i] = static_cast<int64_t>(i) + 1;
  for (const auto& error : save_steps(folder, 8, {.keep = 3}, steps)) EXPECT_EQ(error, "");
  EXPECT_EQ(checkpoints_in(folder), 3);
  EXPECT_EQ(resumed_step(folder), 50);
}

}  // namespace
}  // namespace phalanx
