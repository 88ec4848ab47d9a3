// Disks that fail while a run saves: kills, transient errors, wrong bytes, and leaks.
#include <fcntl.h>
#include <gtest/gtest.h>
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
