// Which checkpoint of a folder a start goes on from.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "phalanx/base/files.h"
#include "phalanx/checkpoint/checkpoint.h"
#include "tests/checkpoint/saved_steps.h"
#include "tests/support/sentence.h"

namespace phalanx {
namespace {

using testing::expect_contains;
namespace fs = std::filesystem;

void save(const std::string& folder, const std::vector<int64_t>& steps) {
  for (const auto& error : save_steps(folder, 2, {.keep = 0}, steps)) EXPECT_EQ(error, "");
}

// A flipped byte keeps the size: without hashes it is loaded, with them it is named, and the older
// checkpoint is taken, by all ranks alike.
TEST(Newest, TheNewestWholeCheckpointIsTakenByContentToo) {
  const std::string folder = testing::temporary_folder();
  save(folder, {1, 2, 3});
  const auto newest = [&](bool verify_hashes) {
    std::vector<std::string> found(3);
    const auto errors = ThreadRanks::run(3, [&](Communicator& world) {
      const auto path = newest_checkpoint(world, folder, {.verify_hashes = verify_hashes});
      found[world.rank()] = path ? fs::path(*path).filename().string() : "none";
    });
    EXPECT_EQ(errors[0], errors[2]);
    EXPECT_EQ(found[0], found[1]);
    EXPECT_EQ(found[0], found[2]);
    return errors[0].empty() ? found[0] : errors[0];
  };
  EXPECT_EQ(newest(true), "step-3");
  const auto damage = [&](int64_t step) {
    const std::string path = text(folder, "/step-", step, "/state-00001-of-00002.safetensors");
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    const auto at = static_cast<int64_t>(fs::file_size(path)) - 1;
    file.seekg(at);
    const char old = static_cast<char>(file.get());
    file.seekp(at).put(static_cast<char>(old ^ 1));
  };
  damage(3);
  EXPECT_EQ(newest(false), "step-3");
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(newest(true), "step-2");
  expect_contains(::testing::internal::GetCapturedStderr(),
                  {"step-2 is used", "step-3", "state-00001-of-00002.safetensors is damaged"});
  damage(2);
  fs::resize_file(folder + "/step-1/manifest.json", 20);
  expect_contains(newest(true), {"no checkpoint in", "step-1: ", "step-2: ", "step-3: ",
                                 "does not have the manifest's hash", "train.resume"});
}

// Without a pointer, or with one that leads nowhere, the folder itself says what is there.
TEST(Newest, LatestIsNotNeeded) {
  const std::string folder = testing::temporary_folder();
  save(folder, {1, 2});
  const auto newest = [&] {
    std::string found;
    on_ranks(2, [&](Communicator& world) {
      const auto path = newest_checkpoint(world, folder);
      if (world.rank() == 1) found = fs::path(path.value()).filename();
    });
    return found;
  };
  const std::string latest = folder + "/latest";
  fs::remove(latest);
  EXPECT_EQ(newest(), "step-2");
  for (const char* target : {"step-99", "step-1", "/nowhere/at/all", "latest"}) {
    fs::create_symlink(target, latest);
    EXPECT_EQ(newest(), "step-2") << target;
    fs::remove(latest);
  }
  for (const char* contents :
       {"", "\r\n", "step-1\r\n", "step-2\r\n", "step-7\n", "global_step1"}) {
    std::ofstream(latest) << contents;
    EXPECT_EQ(newest(), "step-2") << contents;
  }
  fs::remove(latest);
  fs::create_directory(latest);
  EXPECT_EQ(newest(), "step-2");
  // The next save mends it, or says that it cannot and is whole all the same.
  save(folder, {3});
  EXPECT_EQ(newest(), "step-3");
  fs::remove_all(latest);
  save(folder, {4});
  EXPECT_EQ(read_file(latest, ExitCode::checkpoint), "step-4\n");
}

}  // namespace
}  // namespace phalanx
