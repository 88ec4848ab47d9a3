#include "phalanx/checkpoint/storage.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "phalanx/base/files.h"
#include "phalanx/checkpoint/checkpoint.h"
#include "phalanx/checkpoint/copy.h"
#include "phalanx/checkpoint/folder.h"
#include "tests/checkpoint/state_of_test.h"
#include "tests/support/ranks.h"
#include "tests/support/sentence.h"

extern "C" int phalanx_command_ckpt(int argc, char** argv);

namespace phalanx {
namespace {

using testing::expect_contains;

namespace fs = std::filesystem;
using testing::flat_state;
using testing::ThreadRanks;

const std::vector<testing::Role> roles = {{"parameter", at::kFloat, true}};
const std::string state_file = "state-00001-of-00002.safetensors";

std::string save(const std::string& place, int64_t step, int keep = 0) {
  return ThreadRanks::run(2, [&](Communicator& world) {
    const auto state =
        flat_state(testing::small_model(), roles, world.rank(), 2, true, static_cast<int>(step));
    save_checkpoint(world, place, {.step = step}, state, keep);
  })[0];
}

// What starting in `place` says, or the name of what was loaded.
std::string resume(const std::string& place, bool prepares = true) {
  std::string found = "none";
  const auto errors = ThreadRanks::run(2, [&](Communicator& world) {
    if (prepares) prepare_checkpoints(world, place);
    const auto path = newest_checkpoint(world, place);
    if (!path) return;
    const auto state = flat_state(testing::small_model(), roles, world.rank(), 2, false);
    const RunState run = load_checkpoint(world, *path, state, {.verify_hashes = true});
    const std::string wrong = testing::differences(state, static_cast<int>(run.step));
    require(wrong.empty(), ExitCode::checkpoint, wrong);
    if (world.rank() == 0) found = fs::path(*path).filename();
  });
  EXPECT_EQ(errors[0], errors[1]);
  return errors[0].empty() ? found : errors[0];
}

std::string error_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

std::string names(const std::string& folder) {
  std::vector<std::string> found;
  for (const auto& item : open_storage(folder)->list(""))
    if (item.name != ".lock") found.push_back(item.name);
  return join(found, " ");
}

// Links inside of a checkpoint lead wherever someone wanted: they are refused. The checkpoint
// itself may be one, which its owner made; deleting it deletes the link.
TEST(Storage, LinksInACheckpointAreNotFollowed) {
  const std::string folder = testing::temporary_folder(), other = testing::temporary_folder();
  for (int64_t step : {1, 2}) ASSERT_EQ(save(folder, step), "");
  for (const std::string& name :
       {state_file, std::string("manifest.json"), std::string("manifest.json.xxh128")}) {
    const std::string file = folder + "/step-2/" + name;
    fs::rename(file, other + "/" + name);
    fs::create_symlink(other + "/" + name, file);
    EXPECT_EQ(resume(folder), "step-1");
    const auto errors = ThreadRanks::run(
        1, [&](Communicator& world) { load_checkpoint(world, folder + "/step-2", {}); });
    expect_contains(errors[0], {file, "symbolic link"});
    fs::remove(file);
    fs::rename(other + "/" + name, file);
  }
  EXPECT_EQ(resume(folder), "step-2");
  fs::rename(folder + "/step-2", other + "/moved");
  fs::create_directory_symlink(other + "/moved", folder + "/step-2");
  EXPECT_EQ(resume(folder), "step-2");
  ASSERT_EQ(save(folder, 3, 1), "");
  EXPECT_EQ(names(folder), "latest step-3");
  EXPECT_TRUE(fs::exists(other + "/moved/manifest.json"));
}

// A step that is saved again where names cannot be exchanged, as on NFS.
TEST(Storage, WithoutAnExchangeTheOlderCheckpointStepsAsideAndComesBack) {
  const std::string folder = testing::temporary_folder();
  ASSERT_EQ(save(folder, 1), "");
  const auto manifest = [&] {
    return read_file(folder + "/step-1/manifest.json", ExitCode::checkpoint);
  };
  const std::string first = manifest();
  for (int failures : {1, 0}) {
    std::vector<std::string> seen;
    set_disk_hook([&](std::string_view operation, const std::string& path) {
      if (operation == "exchange")
        throw SystemError(ExitCode::checkpoint, EINVAL, "cannot exchange " + path);
      if (operation != "rename" || path != folder + "/step-1") return;
      seen.push_back(names(folder));
      if (failures-- > 0) fail(ExitCode::checkpoint, "cannot rename to " + path);
    });
    const bool fails = failures > 0;
    const std::string error = save(folder, 1);
    set_disk_hook(nullptr);
    EXPECT_EQ(error, fails ? "rank 0: cannot rename to " + folder + "/step-1" : "");
    EXPECT_EQ(seen.size(), fails ? 2u : 1u) << "it is put back";
    EXPECT_NE(seen[0].find("latest step-1-2"), std::string::npos) << seen[0];
    EXPECT_EQ(names(folder), "latest step-1");
    EXPECT_EQ(manifest() == first, fails);
    EXPECT_EQ(resume(folder), "step-1");
  }
}

// After a flush that failed nobody knows which of the two a crash would leave.
TEST(Storage, AReplacedCheckpointStaysIfTheFolderCannotBeFlushed) {
  const std::string folder = testing::temporary_folder();
  ASSERT_EQ(save(folder, 1), "");
  bool exchanged = false;
  set_disk_hook([&](std::string_view operation, const std::string& path) {
    if (operation == "exchange") exchanged = true;
    if (operation == "sync" && path == folder && exchanged)
      throw SystemError(ExitCode::checkpoint, EIO, "cannot flush " + path);
  });
  EXPECT_EQ(save(folder, 1), "rank 0: cannot flush " + folder);
  set_disk_hook(nullptr);
  EXPECT_TRUE(exchanged);
  EXPECT_EQ(names(folder), "latest step-1 step-1-2");
  for (const auto& candidate : candidates(*open_storage(folder))) EXPECT_EQ(candidate.defect, "");
  EXPECT_EQ(resume(folder), "step-1");
}

TEST(Storage, ANewFolderIsFlushedWithThoseThatHoldIt) {
  const std::string folder = testing::temporary_folder();
  std::vector<std::string> flushed;
  set_disk_hook([&](std::string_view operation, const std::string& path) {
    if (operation == "sync") flushed.push_back(path);
  });
  for (int i = 0; i < 2; ++i) make_folder(folder + "/run/checkpoints", ExitCode::checkpoint);
  set_disk_hook(nullptr);
  EXPECT_EQ(flushed, (std::vector<std::string>{folder, folder + "/run"}));
}

void without_permission(const std::string& folder) {
  if (geteuid() == 0) ASSERT_EQ(seteuid(65534), 0);  // nothing is refused to root
  expect_contains(resume(folder + "/closed"),
                  {"rank 0: cannot create " + folder + "/closed/.tmp-probe-", "Permission denied"});
  expect_contains(save(folder + "/closed", 2),
                  {"cannot make the folder " + folder + "/closed/.tmp", "Permission denied"});
  EXPECT_EQ(resume(folder + "/closed", false), "step-1") << "reading is allowed";
  expect_contains(resume(folder + "/closed/none"),
                  {"cannot make the folder " + folder + "/closed/none", "Permission denied"});
  expect_contains(resume(folder + "/unreadable"),
                  {"cannot read the folder " + folder + "/unreadable", "Permission denied"});
  expect_contains(
      resume(folder + "/secret"),
      {"no checkpoint in", "step-1: cannot read the folder " + folder + "/secret/step-1",
       "Permission denied"});
}

TEST(Storage, FoldersWithoutPermissionAreNamed) {
  const std::string folder = testing::temporary_folder();
  for (const std::string name : {"/closed", "/unreadable", "/secret"})
    ASSERT_EQ(save(folder + name, 1), "");
  chmod((folder + "/secret/step-1").c_str(), 0);
  chmod((folder + "/secret").c_str(), 0777);
  chmod((folder + "/closed").c_str(), 0555);
  chmod((folder + "/unreadable").c_str(), 0);
  chmod(folder.c_str(), 0755);
  const auto statuses = testing::fork_ranks(1, [&](const WorldInfo&) {
    without_permission(folder);
    return ::testing::Test::HasFailure() ? 1 : 0;
  });
  EXPECT_EQ(statuses[0], 0);
  for (const std::string name : {"/closed", "/unreadable", "/secret", "/secret/step-1"})
    chmod((folder + name).c_str(), 0755);  // to be removed
}

TEST(Storage, CopiesAreWholeOrNotThere) {
  const std::string folder = testing::temporary_folder(), from = folder + "/run/checkpoints",
                    to = folder + "/copies";
  for (int64_t step : {1, 2}) ASSERT_EQ(save(from, step), "");
  const auto source = open_storage(from), place = open_storage(to);
  const CopiedCheckpoint copied = copy_checkpoint(*source, "step-2", *place);
  EXPECT_EQ(copied.path, to + "/step-2");
  EXPECT_EQ(copied.step, 2);
  EXPECT_EQ(copied.files, 2);
  EXPECT_EQ(resume(to), "step-2");
  for (const auto& item : source->list("step-2"))
    EXPECT_TRUE(read_text(*source, "step-2/" + item.name) ==
                read_text(*place, "step-2/" + item.name));
  copy_checkpoint(*source, "step-1", *place);
  EXPECT_EQ(names(to), "latest step-1 step-2");
  EXPECT_EQ(read_text(*place, "latest"), "step-2\n") << "the newer one";
  EXPECT_EQ(resume(to), "step-2");
  // Every byte of the data is compared, and a copy that is there stays if the new one fails.
  const std::string file = from + "/step-2/" + state_file;
  const auto damage = [&](int64_t at) {
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekg(at);
    const char old = static_cast<char>(stream.get());
    stream.seekp(at).put(static_cast<char>(old ^ 1));
  };
  const auto size = static_cast<int64_t>(fs::file_size(file));
  for (const int64_t at : {size - 1, size / 2}) {
    damage(at);
    expect_contains(error_of([&] { copy_checkpoint(*source, "step-2", *place, true); }),
                    {file, "damaged", "hash", "nothing was copied"});
    damage(at);
    EXPECT_EQ(names(to), "latest step-1 step-2");
    EXPECT_EQ(resume(to), "step-2");
  }
  fs::resize_file(file, size - 1);
  expect_contains(error_of([&] { copy_checkpoint(*source, "step-2", *place); }),
                  {file, "the manifest says"});
}

// A run that starts in an object store during a copy removes what has no manifest yet.
TEST(Storage, ACopyWhoseFilesSomeoneRemovesDoesNotAppear) {
  const std::string folder = testing::temporary_folder(), from = folder + "/run",
                    to = folder + "/copies";
  ASSERT_EQ(save(from, 2), "");
  const auto source = open_storage(from), place = open_storage(to);
  set_disk_hook([&](std::string_view operation, const std::string& path) {
    const fs::path file(path);
    if (operation == "write" && file.filename() == state_file && path.starts_with(to))
      fs::remove(file.parent_path() / "state-00000-of-00002.safetensors");
  });
  const std::string error = error_of([&] { copy_checkpoint(*source, "step-2", *place); });
  set_disk_hook({});
  expect_contains(error, {"state-00000-of-00002.safetensors", "No such file"});
  EXPECT_EQ(names(to), "");
}

// Two runs have a step 2 each: copying one does not lose the other.
TEST(Storage, ACopyReplacesAnotherRunsStepOnlyIfTold) {
  const std::string folder = testing::temporary_folder(), one = folder + "/one",
                    two = folder + "/two", to = folder + "/copies";
  ASSERT_EQ(save(one, 2), "");
  ASSERT_EQ(save(two, 2), "");
  const auto first = open_storage(one), second = open_storage(two), place = open_storage(to);
  EXPECT_FALSE(copy_checkpoint(*first, "step-2", *place).was_there);
  const std::string kept = read_text(*place, "step-2/manifest.json");
  const CopiedCheckpoint again = copy_checkpoint(*first, "step-2", *place);
  EXPECT_TRUE(again.was_there);
  EXPECT_EQ(again.path, to + "/step-2");
  EXPECT_EQ(again.bytes, 0);
  expect_contains(error_of([&] { copy_checkpoint(*second, "step-2", *place); }),
                  {to + "/step-2", "another checkpoint of step 2", "--replace"});
  EXPECT_EQ(read_text(*place, "step-2/manifest.json"), kept);
  EXPECT_FALSE(copy_checkpoint(*second, "step-2", *place, true).was_there);
  EXPECT_EQ(read_text(*place, "step-2/manifest.json"), read_text(*second, "step-2/manifest.json"));
  // The same manifest, but a file that was cut: then it is copied again.
  fs::resize_file(to + "/step-2/" + state_file, 8);
  EXPECT_FALSE(copy_checkpoint(*second, "step-2", *place).was_there);
  EXPECT_EQ(resume(to), "step-2");
}

TEST(CkptCommand, Copies) {
  const std::string folder = testing::temporary_folder(), from = folder + "/run/checkpoints";
  for (int64_t step : {1, 2}) ASSERT_EQ(save(from, step), "");
  const auto ckpt = [](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"ckpt", "copy"});
    std::vector<char*> argv;
    for (auto& argument : arguments) argv.push_back(argument.data());
    ::testing::internal::CaptureStdout();
    const std::string error = error_of(
        [&] { EXPECT_EQ(phalanx_command_ckpt(static_cast<int>(argv.size()), argv.data()), 0); });
    const std::string out = ::testing::internal::GetCapturedStdout();
    return error == "nothing was thrown" ? out : error;
  };
  expect_contains(ckpt({folder + "/run", folder + "/a"}),
                  {folder + "/a/step-2 is a copy of " + from + "/step-2", "2 files"});
  const auto json = nlohmann::json::parse(ckpt({"--json", from + "/step-1", folder + "/a/"}));
  EXPECT_EQ(json["copy"], folder + "/a/step-1");
  EXPECT_EQ(json["step"], 1);
  EXPECT_EQ(names(folder + "/a"), "latest step-1 step-2");
  expect_contains(ckpt({folder + "/run", folder + "/a"}), {"/a/step-2 is there already"});
  EXPECT_EQ(nlohmann::json::parse(ckpt({"--json", from, folder + "/a"}))["was_there"], true);
  ASSERT_EQ(save(from, 2), "");  // once more: another one
  expect_contains(ckpt({folder + "/run", folder + "/a"}), {"another checkpoint", "--replace"});
  expect_contains(ckpt({"--replace", folder + "/run", folder + "/a"}), {"/a/step-2 is a copy of"});
  expect_contains(ckpt({from, folder + "/b/step-2"}), {"/b/step-2", "without /step-2"});
  expect_contains(ckpt({folder + "/none", folder + "/b"}),
                  {"there is no checkpoint in " + folder + "/none"});
  EXPECT_FALSE(fs::exists(folder + "/b"));
}

}  // namespace
}  // namespace phalanx
