#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>

#include "phalanx/base/files.h"
#include "phalanx/checkpoint/checkpoint.h"
#include "phalanx/checkpoint/folder.h"
#include "tests/checkpoint/saved_steps.h"

namespace phalanx {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> save(const std::string& folder, int64_t step, int ranks, int keep) {
  return ThreadRanks::run(ranks, [&](Communicator& world) {
    const auto state = flat_state(testing::small_model(), roles, world.rank(), ranks, true,
                                  static_cast<int>(step));
    save_checkpoint(world, folder, {.step = step, .consumed_samples = 10 * step}, state, keep);
  });
}

// Starts as a new process would: cleans, finds the newest, loads it, compares every element.
int64_t resumed_step(const std::string& folder) {
  int64_t step = -1;
  const auto errors = ThreadRanks::run(2, [&](Communicator& world) {
    prepare_checkpoints(world, folder);
    const auto path = newest_checkpoint(world, folder);
    if (!path) return;
    const auto state = flat_state(testing::small_model(), roles, world.rank(), 2, false);
    const RunState run = load_checkpoint(world, *path, state, {.verify_hashes = true});
    const std::string wrong = testing::differences(state, static_cast<int>(run.step));
    require(wrong.empty() && run.consumed_samples == 10 * run.step, ExitCode::checkpoint, wrong);
    if (world.rank() == 0) step = run.step;
  });
  for (const auto& error : errors) EXPECT_EQ(error, "");
  for (const auto& entry : fs::directory_iterator(folder))
    EXPECT_FALSE(entry.path().filename().string().starts_with(".tmp-")) << entry.path();
  return step;
}

// Counts disk operations of a save and does `fault` before the `at`-th whose path contains `where`.
// Without `exchanges` the file system cannot exchange two names, as NFS.
void inject(int at, const std::string& where, const std::function<void()>& fault,
            bool exchanges = true) {
  auto count = std::make_shared<std::atomic<int>>(0);
  set_disk_hook([=](std::string_view operation, const std::string& path) {
    if (path.find(where) != std::string::npos && ++*count == at) fault();
    if (operation == "exchange" && !exchanges)
      throw SystemError(ExitCode::checkpoint, EINVAL, "cannot exchange " + path);
  });
}

// Killed before every single operation that changes the disk, with keep = 1, which deletes, and
// with a step-1 that the save replaces: a whole checkpoint is always there.
TEST(Faults, KilledAnywhereInASaveAWholeCheckpointIsLeft) {
  for (const auto& [step, exchanges] :
       std::vector<std::pair<int64_t, bool>>{{2, true}, {1, true}, {1, false}}) {
    int finished_at = 0;
    std::map<int64_t, int> resumed;
    for (int at = 1; finished_at == 0; ++at) {
      SCOPED_TRACE(::testing::Message() << "step " << step << ", operation " << at
                                        << (exchanges ? "" : ", no exchange"));
      ASSERT_LT(at, 200);
      const std::string folder = testing::memory_folder();
      for (const auto& error : save(folder, 1, 2, 1)) ASSERT_EQ(error, "");
      const pid_t child = fork();
      if (child == 0) {
        inject(at, folder, [] { raise(SIGKILL); }, exchanges);
        const auto errors = save(folder, step, 2, 1);
        if (!errors[0].empty()) std::cerr << errors[0] << std::endl;
        _exit(errors[0].empty() ? 0 : 1);
      }
      int status = 0;
      waitpid(child, &status, 0);
      if (WIFEXITED(status)) {
        ASSERT_EQ(WEXITSTATUS(status), 0);
        finished_at = at;
      }
      const int64_t found = resumed_step(folder);
      EXPECT_TRUE(found == 1 || found == step);
      ++resumed[found];
      if (finished_at) EXPECT_EQ(found, step);
      fs::remove_all(folder);
    }
    EXPECT_GT(finished_at, 15) << "operations were not counted";
    if (step == 2) EXPECT_TRUE(resumed[1] > 5 && resumed[2] > 2);
  }
}

// One rank's disk fails at each operation: every rank throws the same sentence, which names that
// rank, and nothing is left behind.
TEST(Faults, OneRankFailingIsToldToAll) {
  const NoHook reset;
  const std::string folder = testing::temporary_folder();
  for (const auto& error : save(folder, 1, 3, 0)) ASSERT_EQ(error, "");
  for (const std::string where : {"state-00001", "manifest.json", "step-2", "/.tmp-step-2"})
    for (int at : {1, 2, 3}) {
      SCOPED_TRACE(::testing::Message() << where << " operation " << at);
      inject(at, where, [] { fail(ExitCode::checkpoint, "cannot write: Input/output error"); });
      const auto errors = save(folder, 2, 3, 0);
      set_disk_hook(nullptr);
      if (where == "step-2" && errors[0].empty()) continue;
      for (const auto& error : errors) {
        EXPECT_EQ(error, errors[0]);
        EXPECT_NE(error.find("Input/output error"), std::string::npos) << error;
        EXPECT_TRUE(error.starts_with(where == "state-00001" ? "rank 1: " : "rank ")) << error;
      }
      EXPECT_EQ(resumed_step(folder), 1);
    }
}

TEST(Faults, ATroubledLatestDoesNotFailTheSave) {
  const NoHook reset;
  const std::string folder = testing::temporary_folder();
  for (int failures : {2, 100}) {
    auto left = std::make_shared<std::atomic<int>>(failures);
    set_disk_hook([=](std::string_view operation, const std::string& path) {
      if (operation == "rename" && path.ends_with("/latest") && (*left)-- > 0)
        fail(ExitCode::checkpoint, "cannot rename: Permission denied");
    });
    for (const auto& error : save(folder, failures, 2, 0)) EXPECT_EQ(error, "");
    EXPECT_EQ(resumed_step(folder), failures);
    EXPECT_EQ(read_file(folder + "/latest", ExitCode::checkpoint), "step-2\n");
  }
}

TEST(Faults, AFileThatMayNotBecomeSoLarge) {
  const std::string folder = testing::temporary_folder();
  const auto statuses = testing::fork_ranks(1, [&](const WorldInfo&) {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit low{3 << 20, 3 << 20};
    setrlimit(RLIMIT_FSIZE, &low);
    const auto write = [&](int64_t step, int64_t megabytes) {
      return ThreadRanks::run(2, [&](Communicator& world) {
        std::vector<StateEntry> state;
        if (world.rank() == 1)
          state.push_back(whole_entry("big", "parameter", at::ones({megabytes << 18}, at::kFloat)));
        save_checkpoint(world, folder, {.step = step}, state, 0);
      });
    };
    for (const auto& error : write(1, 2)) EXPECT_EQ(error, "");
    const auto errors = write(2, 3);
    EXPECT_EQ(errors[0], errors[1]);
    for (const std::string fragment :
         {"rank 1: ", "state-00001-of-00002.safetensors: ", "File too large"})
      EXPECT_NE(errors[0].find(fragment), std::string::npos) << errors[0];
    const auto found = candidates(*open_storage(folder));
    EXPECT_EQ(found.size(), 1u);
    EXPECT_EQ(found[0].defect, "");
    EXPECT_EQ(std::distance(fs::directory_iterator(folder), fs::directory_iterator()), 2);
    return 0;
  });
  EXPECT_EQ(statuses[0], 0);
}

TEST(Faults, AFolderThatCannotBeUsedIsNamedBeforeTheFirstStep) {
  const std::string folder = testing::temporary_folder();
  std::ofstream(folder + "/file") << "not a folder";
  for (const std::string& target :
       {folder + "/file", folder + "/file/below", std::string("/proc/none")}) {
    const auto errors =
        ThreadRanks::run(2, [&](Communicator& world) { prepare_checkpoints(world, target); });
    EXPECT_EQ(errors[0], errors[1]);
    EXPECT_NE(errors[0].find(target), std::string::npos) << errors[0];
    EXPECT_NE(save(target, 1, 2, 0)[1], "");
  }
  // A folder that another process made in the meantime is no error.
  fs::create_directory(folder + "/there");
  EXPECT_EQ(save(folder + "/there", 1, 2, 0)[0], "");
}

}  // namespace
}  // namespace phalanx
