// Disks that do not answer while a run saves: nobody waits for one without an end.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <filesystem>

#include "tests/checkpoint/saved_steps.h"

namespace phalanx {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

// The next start removes what is unfinished.
std::set<int64_t> steps_after_a_start(const std::string& folder) {
  on_ranks(2, [&](Communicator& world) { Checkpointer(world, folder); });
  for (const auto& name : names_in(folder)) EXPECT_FALSE(name.starts_with(".tmp-")) << name;
  return steps_in(folder);
}

// A disk that does not answer before end(). It gives up after a while, so that a test that waited
// for it can end, and fail.
class Silence {
 public:
  ~Silence() { end(); }
  void hang() {
    ++hanging;
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!over_ && std::chrono::steady_clock::now() < limit) usleep(1000);
    ++left;
  }
  void end() {
    over_ = true;
    while (left < hanging) usleep(1000);
  }
  std::atomic<int> hanging = 0, left = 0;

 private:
  std::atomic<bool> over_ = false;
};

TEST(SilentDisk, ADiskThatDoesNotAnswerIsAnErrorOfAllRanksAfterTheDeadline) {
  const NoHook reset;
  const std::string folder = testing::temporary_folder();
  Silence silent;
  set_disk_hook([&](std::string_view operation, const std::string& path) {
    if (operation != "write" || path.find("state-00001") == std::string::npos) return;
    silent.hang();
    fail(ExitCode::checkpoint, "too late");
  });
  const auto errors = save_steps(folder, 3, {.deadline = milliseconds(300)}, {1});
  EXPECT_EQ(silent.left, 0) << "it was waited for";
  for (const auto& error : errors) EXPECT_EQ(error, errors[0]);
  EXPECT_TRUE(errors[0].starts_with("rank 1: saving step 1 in " + folder + " got no further for"))
      << errors[0];
}

// Rank 1's disk falls silent a while after rank 0's, whose time is up first. What does not answer
// is left alone until the next start.
TEST(SilentDisk, OfTwoDisksThatDoNotAnswerNoneIsWaitedForOrTouchedAgain) {
  const NoHook reset;
  const std::string folder = testing::temporary_folder();
  Silence silent;
  std::atomic<int> removed = 0;
  set_disk_hook([&](std::string_view operation, const std::string& path) {
    const bool first = path.find("state-00000") != std::string::npos;
    const bool second = path.find("state-00001") != std::string::npos;
    if (operation == "remove" && silent.hanging > 0) ++removed;
    if (operation == "create" && second) usleep(100'000);
    if ((operation == "create" && first) || (operation == "sync" && second)) {
      silent.hang();
      fail(ExitCode::checkpoint, "too late");
    }
  });
  const auto errors = save_steps(folder, 2, {.deadline = milliseconds(500)}, {1});
  EXPECT_EQ(silent.left, 0) << "it was waited for";
  EXPECT_EQ(removed, 0);
  EXPECT_EQ(errors[0], errors[1]);
  EXPECT_TRUE(errors[0].starts_with("rank 0: saving step 1 in " + folder + " got no further for"))
      << errors[0];
  silent.end();
  EXPECT_EQ(steps_after_a_start(folder), std::set<int64_t>{});
}

// The other rank's error is what is told, and saving goes on.
TEST(SilentDisk, AnErrorIsToldThoughAnotherRanksDiskDoesNotAnswer) {
  const NoHook reset;
  for (bool async : {false, true}) {
    SCOPED_TRACE(async);
    const std::string folder = testing::temporary_folder();
    Silence silent;
    std::atomic<bool> healthy = false;
    set_disk_hook([&](std::string_view operation, const std::string& path) {
      if (healthy) return;
      if (operation == "write" && path.find("state-00001") != std::string::npos) {
        while (silent.hanging == 0) usleep(1000);
        throw SystemError(ExitCode::checkpoint, ENOSPC, "cannot write");
      }
      if (operation == "sync" && path.find("state-00000") != std::string::npos) {
        silent.hang();
        fail(ExitCode::checkpoint, "too late");
      }
    });
    const auto errors = ThreadRanks::run(2, [&](Communicator& world) {
      Checkpointer checkpointer(world, folder, {.async = async, .deadline = milliseconds(300)});
      try {
        save_at(checkpointer, world, 1);
        checkpointer.finish();
        ADD_FAILURE() << "a full disk was no error";
      } catch (const Error& error) {
        EXPECT_STREQ(error.what(), "rank 1: cannot write");
      }
      EXPECT_EQ(silent.left, 0) << "it was waited for";
      healthy = true;
      save_at(checkpointer, world, 2);
      checkpointer.finish();
    });
    for (const auto& error : errors) EXPECT_EQ(error, "");
    silent.end();
    EXPECT_EQ(steps_after_a_start(folder), (std::set<int64_t>{2}));
    expect_whole(folder + "/step-2", 2);
  }
}

TEST(SilentDisk, AnExceptionDoesNotWaitForADiskThatDoesNotAnswer) {
  const NoHook reset;
  const std::string folder = testing::temporary_folder();
  Silence silent;
  set_disk_hook([&](std::string_view operation, const std::string& path) {
    if (operation != "sync" || !path.ends_with(".safetensors")) return;
    silent.hang();
    fail(ExitCode::checkpoint, "too late");
  });
  const auto errors = ThreadRanks::run(1, [&](Communicator& world) {
    Checkpointer checkpointer(world, folder, {.async = true, .deadline = milliseconds(300)});
    save_at(checkpointer, world, 1);
    while (silent.hanging == 0) usleep(1000);
    fail(ExitCode::data, "something else");
  });
  EXPECT_EQ(errors[0], "something else");
  EXPECT_EQ(silent.left, 0) << "it was waited for";
}

TEST(SilentDisk, WhatAFailedSaveLeftIsRemovedOnlyIfTheDiskAnswers) {
  const NoHook reset;
  const std::string folder = testing::temporary_folder();
  Silence silent;
  set_disk_hook([&](std::string_view operation, const std::string& path) {
    if (path.find(".tmp-step-") == std::string::npos) return;
    if (operation == "write") fail(ExitCode::checkpoint, "cannot write");
    if (operation != "remove") return;
    silent.hang();
    fail(ExitCode::checkpoint, "too late");
  });
  const auto errors = save_steps(folder, 2, {.deadline = milliseconds(300)}, {1});
  for (const auto& error : errors) EXPECT_EQ(error, "rank 0: cannot write");
  EXPECT_EQ(silent.hanging, 1);
  EXPECT_EQ(silent.left, 0) << "it was waited for";
}

// Each takes its time, all together longer than a disk may be silent.
TEST(SilentDisk, DeletingManyCheckpointsIsProgress) {
  const NoHook reset;
  const std::string folder = testing::memory_folder();
  EXPECT_EQ(save_steps(folder, 1, {.keep = 0}, {1, 2, 3, 4, 5, 6, 7, 8})[0], "");
  int deleted = 0;
  set_disk_hook([&](std::string_view operation, const std::string& path) {
    if (operation != "remove" || path.find(".tmp-delete-") == std::string::npos) return;
    ++deleted;
    usleep(300'000);
  });
  EXPECT_EQ(save_steps(folder, 1, {.keep = 1, .deadline = milliseconds(2000)}, {9})[0], "");
  EXPECT_EQ(deleted, 8);
  EXPECT_EQ(steps_in(folder), (std::set<int64_t>{9}));
}

TEST(SilentDisk, NothingMoreIsDeletedOnceTheSaveIsGivenUp) {
  const NoHook reset;
  const std::string folder = testing::memory_folder();
  EXPECT_EQ(save_steps(folder, 1, {.keep = 0}, {1, 2, 3, 4})[0], "");
  TaskProgress progress;
  set_disk_hook([&](std::string_view operation, const std::string&) {
    if (operation == "remove") progress.cancelled = true;
  });
  delete_old(*open_storage(folder), 1, 0, nullptr, progress);
  EXPECT_EQ(names_in(folder),
            (std::set<std::string>{".lock", "latest", "step-1", "step-2", "step-4"}));
  EXPECT_EQ(progress.done, 5) << "four were read, one was deleted";
}

int64_t thread_count() {
  return std::distance(fs::directory_iterator("/proc/self/task"), fs::directory_iterator());
}

// The disk answers after all, when the error has been told: no checkpoint appears behind the back
// of whoever went on.
TEST(SilentDisk, ASaveThatWasGivenUpIsNotPublishedLater) {
  const NoHook reset;
  const std::string folder = testing::temporary_folder();
  EXPECT_EQ(save_steps(folder, 1, {}, {1})[0], "");
  const int64_t threads = thread_count();
  Silence silent;
  set_disk_hook([&](std::string_view operation, const std::string& path) {
    if (operation == "create" && path.ends_with("/manifest.json")) silent.hang();
  });
  const auto errors = save_steps(folder, 1, {.deadline = milliseconds(100)}, {2});
  EXPECT_NE(errors[0].find("got no further for"), std::string::npos) << errors[0];
  silent.end();
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (thread_count() > threads && std::chrono::steady_clock::now() < limit) usleep(1000);
  EXPECT_EQ(thread_count(), threads) << "the writer did not end";
  EXPECT_EQ(steps_after_a_start(folder), (std::set<int64_t>{1}));
}

}  // namespace
}  // namespace phalanx
