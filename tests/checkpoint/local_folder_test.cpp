// A node-local folder that is saved to first.
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "tests/checkpoint/saved_steps.h"
#include "tests/support/sentence.h"

namespace phalanx {
namespace {

namespace fs = std::filesystem;

TEST(Checkpointer, ALocalFolderIsSavedToFirstAndCopied) {
  const NoHook reset;
  for (bool async : {false, true}) {
    SCOPED_TRACE(async);
    const std::string folder = testing::temporary_folder(), local = testing::temporary_folder();
    const std::string place = local_place(local, folder);
    on_ranks(2, [&](Communicator& world) {
      Checkpointer checkpointer(
          world, folder, {.keep = 2, .async = async, .verify_after_save = true, .local = local});
      if (world.rank() == 0)
        set_disk_hook([&](std::string_view operation, const std::string& path) {
          if (operation == "create" && path.starts_with(folder) && path.ends_with(".safetensors"))
            usleep(100'000);
        });
      for (int64_t step = 1; step <= 3; ++step) {
        save_at(checkpointer, world, step);
        EXPECT_TRUE(checkpointer.in_flight());
        if (!async) {
          EXPECT_EQ(checkpointer.newest(), text(place, "/step-", step));
          EXPECT_EQ(newest_checkpoint(world, folder, local), checkpointer.newest());
        }
      }
      checkpointer.finish();
      EXPECT_EQ(checkpointer.newest(), folder + "/step-3");
    });
    set_disk_hook(nullptr);
    EXPECT_EQ(steps_in(folder), (std::set<int64_t>{2, 3}));
    EXPECT_EQ(steps_in(place), (std::set<int64_t>{3}));
    expect_whole(folder + "/step-2", 2);
    expect_whole(folder + "/step-3", 3);
    expect_whole(place + "/step-3", 3);
  }
}

TEST(Checkpointer, ACopyThatFailsIsToldAndTheLocalCheckpointIsWhatARunGoesOnFrom) {
  const NoHook reset;
  const std::string folder = testing::temporary_folder(), local = testing::temporary_folder();
  const std::string place = local_place(local, folder);
  on_ranks(2, [&](Communicator& world) {
    Checkpointer checkpointer(world, folder, {.local = local});
    save_at(checkpointer, world, 1);
    checkpointer.finish();
    EXPECT_EQ(newest_checkpoint(world, folder, local), place + "/step-1");
    if (world.rank() == 0)
      set_disk_hook([&](std::string_view operation, const std::string& path) {
        if (path.starts_with(folder) && path.find("state-00001") != std::string::npos)
          fail(ExitCode::checkpoint, "cannot ", operation, " ", path, ": gone");
      });
    save_at(checkpointer, world, 2);
    try {
      checkpointer.finish();
      ADD_FAILURE() << "the copy failed";
    } catch (const Error& error) {
      EXPECT_TRUE(std::string(error.what()).starts_with("rank 1: cannot create " + folder))
          << error.what();
    }
    if (world.rank() == 0) set_disk_hook(nullptr);
    EXPECT_EQ(newest_checkpoint(world, folder, local), place + "/step-2");
  });
  EXPECT_EQ(steps_in(folder), (std::set<int64_t>{1}));
  expect_whole(place + "/step-2", 2);
  // A broken local one, and one that not all ranks see, is not what a run goes on from.
  on_ranks(2, [&](Communicator& world) {
    const std::string mine = world.rank() == 0 ? local : local + "-elsewhere";
    EXPECT_EQ(newest_checkpoint(world, folder, mine), folder + "/step-1");
  });
  fs::resize_file(place + "/step-2/state-00000-of-00002.safetensors", 10);
  on_ranks(2, [&](Communicator& world) {
    EXPECT_EQ(newest_checkpoint(world, folder, local), folder + "/step-1");
  });
}

// As on two hosts: the files of a checkpoint lie in two local folders.
TEST(Checkpointer, LocalFoldersOfSeveralHostsOnlyStageTheFiles) {
  const std::string folder = testing::temporary_folder();
  const std::string locals[] = {testing::temporary_folder(), testing::temporary_folder()};
  on_ranks(2, [&](Communicator& world) {
    Checkpointer checkpointer(world, folder, {.async = true, .local = locals[world.rank()]});
    for (int64_t step : {1, 2}) save_at(checkpointer, world, step);
    checkpointer.finish();
    EXPECT_EQ(checkpointer.newest(), folder + "/step-2");
    EXPECT_EQ(newest_checkpoint(world, folder, locals[world.rank()]), folder + "/step-2");
  });
  expect_whole(folder + "/step-2", 2);
  for (const auto& local : locals)
    for (const auto& name : names_in(local_place(local, folder))) EXPECT_EQ(name, ".lock");
}

// Two runs whose configs name the same local folder.
TEST(Checkpointer, ARunDoesNotGoOnFromTheLocalCheckpointOfAnother) {
  const std::string parent = testing::temporary_folder(), local = testing::temporary_folder();
  const std::string first = parent + "/first", second = parent + "/second";
  on_ranks(2, [&](Communicator& world) {
    Checkpointer checkpointer(world, first, {.local = local});
    save_at(checkpointer, world, 5);
    Checkpointer other(world, second, {.local = local});  // not kept out by the lock
    EXPECT_EQ(newest_checkpoint(world, second, local), std::nullopt);
    save_at(other, world, 1);
    other.finish();
    EXPECT_EQ(newest_checkpoint(world, second, local), local_place(local, second) + "/step-1");
    checkpointer.finish();
    EXPECT_EQ(newest_checkpoint(world, first, local), local_place(local, first) + "/step-5");
  });
  expect_whole(local_place(local, first) + "/step-5", 5);
  EXPECT_EQ(local_place(local, first), local_place(local, parent + "/second/../first/"));
  EXPECT_NE(local_place(local, "s3://a/b"), local_place(local, "s3://a/c"));
}

// Whether somebody emptied it or the first copy was cut off, nobody knows: nothing is lost.
TEST(Checkpointer, AnEmptyFolderGoesOnFromItsLocalCheckpointAndSaysSo) {
  const std::string folder = testing::temporary_folder() + "/run",
                    local = testing::temporary_folder(), place = local_place(local, folder);
  on_ranks(2, [&](Communicator& world) {
    Checkpointer checkpointer(world, folder, {.local = local});
    save_at(checkpointer, world, 1);
    checkpointer.finish();
  });
  const auto newest = [&] {
    std::string found;
    ::testing::internal::CaptureStderr();
    on_ranks(2, [&](Communicator& world) {
      Checkpointer checkpointer(world, folder, {.local = local});
      const auto path = newest_checkpoint(world, folder, local);
      if (world.rank() == 1) found = path.value_or("none");
    });
    return std::pair(found, ::testing::internal::GetCapturedStderr());
  };
  EXPECT_EQ(newest(), std::pair(place + "/step-1", std::string()));
  fs::remove_all(folder);
  const auto [found, warned] = newest();
  EXPECT_EQ(found, place + "/step-1");
  EXPECT_NE(warned.find(folder + " holds no checkpoint; to start anew remove " + place + " too"),
            std::string::npos)
      << warned;
  fs::remove_all(place);
  EXPECT_EQ(newest(), std::pair(std::string("none"), std::string()));
}

// What keeps the folder's own from being used is told.
TEST(Checkpointer, AFolderOfBrokenCheckpointsIsNotSaidToHoldNone) {
  const std::string folder = testing::temporary_folder(), local = testing::temporary_folder();
  on_ranks(2, [&](Communicator& world) {
    Checkpointer checkpointer(world, folder, {.local = local});
    save_at(checkpointer, world, 1);
    checkpointer.finish();
  });
  fs::resize_file(folder + "/step-1/state-00000-of-00002.safetensors", 10);
  ::testing::internal::CaptureStderr();
  on_ranks(2, [&](Communicator& world) {
    EXPECT_EQ(newest_checkpoint(world, folder, local), local_place(local, folder) + "/step-1");
  });
  testing::expect_contains(
      ::testing::internal::GetCapturedStderr(),
      {folder + " holds only broken ones (step-1: ", "has 10 bytes", "; to start anew remove"});
}

// A byte that changed keeps the size: the folder's is taken if contents are compared.
TEST(Checkpointer, ALocalCheckpointIsComparedByContentToo) {
  const std::string folder = testing::temporary_folder(), local = testing::temporary_folder();
  const std::string place = local_place(local, folder);
  on_ranks(2, [&](Communicator& world) {
    Checkpointer checkpointer(world, folder, {.local = local});
    save_at(checkpointer, world, 1);
    checkpointer.finish();
  });
  const std::string path = place + "/step-1/state-00001-of-00002.safetensors";
  const char last = read_file(path, ExitCode::checkpoint).back();
  std::fstream(path, std::ios::in | std::ios::out | std::ios::binary)
      .seekp(static_cast<int64_t>(fs::file_size(path)) - 1)
      .put(static_cast<char>(last ^ 1));
  on_ranks(2, [&](Communicator& world) {
    EXPECT_EQ(newest_checkpoint(world, folder, local), place + "/step-1");
  });
  ::testing::internal::CaptureStderr();
  on_ranks(2, [&](Communicator& world) {
    EXPECT_EQ(newest_checkpoint(world, folder, local, {.verify_hashes = true}), folder + "/step-1");
  });
  testing::expect_contains(::testing::internal::GetCapturedStderr(), {path + " is damaged"});
}

}  // namespace
}  // namespace phalanx
