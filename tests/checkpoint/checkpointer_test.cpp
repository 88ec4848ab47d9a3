// A run's folder of checkpoints: what is kept, when, and who may write there.
#include "phalanx/checkpoint/checkpointer.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <set>

#include "phalanx/base/files.h"
#include "phalanx/checkpoint/checkpoint.h"
#include "phalanx/checkpoint/folder.h"
#include "phalanx/comm/ledger.h"
#include "tests/checkpoint/state_of_test.h"
#include "tests/support/ranks.h"

namespace phalanx {
namespace {

namespace fs = std::filesystem;
using testing::flat_state;
using testing::ThreadRanks;

const std::vector<testing::Role> roles = {
    {"parameter", at::kFloat, true}, {"exp_avg", at::kDouble, true}, {"count", at::kLong, false}};

std::vector<StateEntry> state_at(const Communicator& world, int64_t step, bool filled = true) {
  return flat_state(testing::small_model(), roles, world.rank(), world.size(), filled,
                    static_cast<int>(step));
}

RunState run_at(int64_t step) {
  return {.step = step, .consumed_samples = 10 * step, .values = {{"updates", step}}};
}

void save_at(Checkpointer& checkpointer, const Communicator& world, int64_t step) {
  checkpointer.save(run_at(step), state_at(world, step));
}

void on_ranks(int ranks, const std::function<void(Communicator&)>& body) {
  for (const auto& error : ThreadRanks::run(ranks, body)) EXPECT_EQ(error, "");
}

std::set<int64_t> steps_in(const std::string& folder) {
  std::set<int64_t> steps;
  for (const auto& candidate : candidates(*open_storage(folder))) {
    EXPECT_EQ(candidate.defect, "");
    steps.insert(step_of(candidate.name).value());
  }
  return steps;
}

std::set<std::string> names_in(const std::string& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder))
    names.insert(entry.path().filename().string());
  return names;
}

// Loads it as another number of ranks and compares every element with those of `step`.
void expect_whole(const std::string& path, int64_t step) {
  on_ranks(3, [&](Communicator& world) {
    const auto state = state_at(world, step, false);
    const RunState run = load_checkpoint(world, path, state, {.verify_hashes = true});
    EXPECT_EQ(run.step, step);
    EXPECT_EQ(run.consumed_samples, 10 * step);
    EXPECT_EQ(std::get<int64_t>(run.values.at("updates")), step);
    EXPECT_EQ(testing::differences(state, static_cast<int>(step)), "");
  });
}

struct NoHook {
  ~NoHook() { set_disk_hook(nullptr); }
};

std::unique_ptr<Communicator> everyone(World& world) {
  std::vector<int> ranks(world.info().size);
  std::iota(ranks.begin(), ranks.end(), 0);
  return world.group("world", ranks);
}

// --- what is kept ---

TEST(Checkpointer, KeepsTheNewestAndThoseOfEveryKthStep) {
  for (bool async : {false, true})
    for (const auto& [keep, kept] : std::vector<std::pair<int, std::set<int64_t>>>{
             {2, {4, 8, 9, 10}}, {1, {4, 8, 10}}, {0, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}}}) {
      SCOPED_TRACE(text("keep ", keep, async ? ", async" : ""));
      const std::string folder = testing::temporary_folder();
      on_ranks(2, [&, keep = keep](Communicator& world) {
        Checkpointer checkpointer(world, folder, {.keep = keep, .keep_every = 4, .async = async});
        for (int64_t step = 1; step <= 10; ++step) save_at(checkpointer, world, step);
        checkpointer.finish();
        EXPECT_EQ(checkpointer.newest(), folder + "/step-10");
      });
      EXPECT_EQ(steps_in(folder), kept);
      expect_whole(folder + "/step-4", 4);
      expect_whole(folder + "/step-10", 10);
      EXPECT_EQ(read_file(folder + "/latest", ExitCode::checkpoint), "step-10\n");
    }
}

// Nothing old goes before the new one is there: looked at before every change of the disk.
TEST(Checkpointer, KeepOneAlwaysLeavesACompleteOne) {
  const NoHook reset;
  const std::string folder = testing::temporary_folder();
  int looked = 0, changed = 0;
  int64_t newest = 0;
  on_ranks(1, [&](Communicator& world) {
    Checkpointer checkpointer(world, folder, {.keep = 1});
    save_at(checkpointer, world, 1);
    newest = 1;
    set_disk_hook([&](std::string_view operation, const std::string& path) {
      ++looked;
      if (operation == "remove" || operation == "rename") ++changed;
      const auto steps = steps_in(folder);
      EXPECT_TRUE(steps.contains(newest) || steps.contains(newest + 1)) << operation << " " << path;
    });
    for (; newest < 5; ++newest) save_at(checkpointer, world, newest + 1);
    set_disk_hook(nullptr);
  });
  EXPECT_GT(looked, 40);
  EXPECT_GT(changed, 8);
  EXPECT_EQ(steps_in(folder), (std::set<int64_t>{5}));
}

TEST(Checkpointer, CheckpointsOfAnotherRunAreOlderWhateverTheirSteps) {
  const std::string folder = testing::temporary_folder();
  on_ranks(2, [&](Communicator& world) {
    Checkpointer first(world, folder, {.keep = 3});
    for (int64_t step : {500, 600, 700}) save_at(first, world, step);
  });
  ::testing::internal::CaptureStderr();
  on_ranks(2, [&](Communicator& world) {
    Checkpointer second(world, folder, {.keep = 3}, 0);
    save_at(second, world, 100);
  });
  const std::string warned = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(
      warned.find(
          "step-700, step-600, step-500 of another run or of later steps, this run is at step 0"),
      std::string::npos)
      << warned;
  EXPECT_EQ(steps_in(folder), (std::set<int64_t>{100, 600, 700}));
  on_ranks(2, [&](Communicator& world) {
    EXPECT_EQ(newest_checkpoint(world, folder), folder + "/step-100");
  });
  ::testing::internal::CaptureStderr();  // going on from the newest of all is no other run
  on_ranks(2, [&](Communicator& world) { Checkpointer(world, folder, {.keep = 3}, 700); });
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

// --- who may write ---

TEST(Checkpointer, ASecondRunIsRefusedUntilTheFirstIsGoneHoweverItEnded) {
  const std::string folder = testing::temporary_folder() + "/below";
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t owner = fork();
  if (owner == 0) {
    ThreadRanks::run(2, [&](Communicator& world) {
      Checkpointer checkpointer(world, folder);
      save_at(checkpointer, world, 1);
      if (world.rank() == 0 && write(ready[1], "x", 1) == 1) pause();
      pause();
    });
    _exit(0);
  }
  close(ready[1]);
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  close(ready[0]);
  char host[256] = {};
  gethostname(host, sizeof(host) - 1);
  const auto refused =
      ThreadRanks::run(2, [&](Communicator& world) { Checkpointer(world, folder); });
  EXPECT_EQ(refused[0], refused[1]);
  for (const std::string& fragment :
       {std::string("another run saves in " + folder), text("host ", host),
        text("process ", owner, ", since 20"), std::string("stop it")})
    EXPECT_NE(refused[0].find(fragment), std::string::npos) << refused[0];
  expect_whole(folder + "/step-1", 1);  // readers need no lock
  kill(owner, SIGKILL);
  waitpid(owner, nullptr, 0);
  on_ranks(2, [&](Communicator& world) {
    Checkpointer checkpointer(world, folder);
    save_at(checkpointer, world, 2);
  });
  on_ranks(2, [&](Communicator& world) { Checkpointer(world, folder); });
}

// The folder itself is all that is touched. Not as root, whom no permission stops.
TEST(Checkpointer, AParentThatIsReadOnlyIsNoObstacleATargetThatIsIsNamed) {
  const std::string parent = testing::temporary_folder(), folder = parent + "/writable";
  fs::create_directory(folder);
  fs::permissions(folder, fs::perms::all);
  const std::string closed = parent + "/closed";
  fs::create_directory(closed);
  fs::permissions(closed, fs::perms(0555));
  fs::permissions(parent, fs::perms(0555));
  const auto statuses = testing::fork_ranks(1, [&](const WorldInfo&) {
    if (geteuid() == 0) EXPECT_EQ(setuid(65534), 0);
    on_ranks(2, [&](Communicator& world) {
      Checkpointer checkpointer(world, folder, {.keep = 1});
      for (int64_t step : {1, 2}) save_at(checkpointer, world, step);
    });
    for (const std::string& bad : {closed, parent + "/new"}) {
      const auto errors =
          ThreadRanks::run(2, [&](Communicator& world) { Checkpointer(world, bad); });
      EXPECT_EQ(errors[0], errors[1]);
      EXPECT_NE(errors[0].find(bad), std::string::npos) << errors[0];
      EXPECT_NE(errors[0].find("Permission denied"), std::string::npos) << errors[0];
    }
    return 0;
  });
  EXPECT_EQ(statuses[0], 0);
  EXPECT_EQ(steps_in(folder), (std::set<int64_t>{2}));
  fs::permissions(parent, fs::perms(0755));
  fs::permissions(closed, fs::perms(0755));
}

// --- in the background ---

// What is saved is the state at save(), whatever happens to it while a slow disk takes it.
TEST(Checkpointer, AnAsynchronousSaveHoldsTheStateOfItsStep) {
  const NoHook reset;
  const std::string folder = testing::temporary_folder();
  on_ranks(2, [&](Communicator& world) {
    Checkpointer checkpointer(world, folder, {.keep = 0, .async = true});
    auto state = state_at(world, 5);
    RunState run = run_at(5);
    checkpointer.prepare(state);
    if (world.rank() == 0)
      set_disk_hook([](std::string_view operation, const std::string& path) {
        if (operation == "create" && path.ends_with(".safetensors")) usleep(300'000);
      });
    checkpointer.save(run, state);
    int polls = 0;
    for (; checkpointer.in_flight(); ++polls) {  // the steps after it
      for (const auto& entry : state)
        for (const auto& part : entry.parts) part.local.add_(1);
      ++run.step, run.consumed_samples += 10, run.values["updates"] = run.step;
      usleep(2000);
      checkpointer.poll();
    }
    EXPECT_GT(polls, 20) << "save() waited for the disk";
    EXPECT_EQ(checkpointer.newest(), folder + "/step-5");
  });
  set_disk_hook(nullptr);
  expect_whole(folder + "/step-5", 5);
  // File for file what a synchronous save of that state writes.
  const std::string other = testing::temporary_folder();
  on_ranks(2, [&](Communicator& world) {
    save_checkpoint(world, other, run_at(5), state_at(world, 5), 0);
  });
  for (int rank : {0, 1}) {
    const std::string name = text("/step-5/state-0000", rank, "-of-00002.safetensors");
    EXPECT_TRUE(read_file(folder + name, ExitCode::checkpoint) ==
                read_file(other + name, ExitCode::checkpoint));
  }
}

TEST(Checkpointer, ASecondSaveWaitsForTheFirstAndTheEndForBoth) {
  const std::string folder = testing::temporary_folder();
  on_ranks(2, [&](Communicator& world) {
    Checkpointer checkpointer(world, folder, {.keep = 0, .async = true});
    for (int64_t step = 1; step <= 3; ++step) {
      save_at(checkpointer, world, step);
      EXPECT_TRUE(checkpointer.in_flight());
      if (step > 1) EXPECT_EQ(checkpointer.newest(), text(folder, "/step-", step - 1));
    }
  });  // no finish(): the end of the object waits
  EXPECT_EQ(steps_in(folder), (std::set<int64_t>{1, 2, 3}));
  for (int64_t step : {1, 2, 3}) expect_whole(text(folder, "/step-", step), step);
}

TEST(Checkpointer, AFailureInTheBackgroundIsToldToAllAtTheSamePollAndSavingGoesOn) {
  const NoHook reset;
  const std::string folder = testing::temporary_folder();
  for (const std::string where : {"state-00001", "manifest.json", "/step-2"}) {
    SCOPED_TRACE(where);
    std::vector<int> thrown_at(3, -1);
    std::vector<std::string> told(3);
    on_ranks(3, [&](Communicator& world) {
      Checkpointer checkpointer(world, folder, {.keep = 0, .async = true});
      save_at(checkpointer, world, 1);
      checkpointer.finish();
      if (world.rank() == 0)
        set_disk_hook([&](std::string_view operation, const std::string& path) {
          if (path.find(where) != std::string::npos)
            fail(ExitCode::checkpoint, "cannot ", operation, " ", path, ": Invalid argument");
        });
      save_at(checkpointer, world, 2);
      for (int poll = 0; poll < 2000 && told[world.rank()].empty(); ++poll) try {
          usleep(1000);
          checkpointer.poll();
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), ExitCode::checkpoint);
          thrown_at[world.rank()] = poll;
          told[world.rank()] = error.what();
        }
      EXPECT_FALSE(checkpointer.in_flight());
      if (world.rank() == 0) set_disk_hook(nullptr);
      save_at(checkpointer, world, 3);
    });
    for (int rank : {0, 1, 2}) {
      EXPECT_EQ(told[rank], told[0]);
      EXPECT_EQ(thrown_at[rank], thrown_at[0]);
    }
    EXPECT_TRUE(told[0].starts_with(where == "state-00001" ? "rank 1: cannot" : "rank 0: cannot"))
        << told[0];
    EXPECT_EQ(steps_in(folder), (std::set<int64_t>{1, 3}));
    for (const auto& name : names_in(folder)) EXPECT_FALSE(name.starts_with(".tmp-")) << name;
    expect_whole(folder + "/step-3", 3);
    fs::remove_all(folder + "/step-3");
  }
}

// A program that ends right after save() has its checkpoint; one that is killed has none of it.
TEST(Checkpointer, TheEndOfTheProgramWaitsAKilledOneLeavesNothing) {
  for (bool killed : {false, true}) {
    const std::string folder = testing::temporary_folder();
    const auto statuses = testing::fork_ranks(1, [&](const WorldInfo&) {
      set_disk_hook([&](std::string_view operation, const std::string& path) {
        if (operation == "create" && path.ends_with(".safetensors")) usleep(100'000);
      });
      on_ranks(2, [&](Communicator& world) {
        Checkpointer checkpointer(world, folder, {.async = true});
        save_at(checkpointer, world, 5);
        if (killed) raise(SIGKILL);
      });
      return 0;
    });
    EXPECT_EQ(WIFSIGNALED(statuses[0]), killed);
    EXPECT_EQ(steps_in(folder), killed ? std::set<int64_t>{} : std::set<int64_t>{5});
    if (!killed) expect_whole(folder + "/step-5", 5);
  }
}

// --- the plan ---

TEST(Checkpointer, RanksExchangeTheirPlanOnlyWhenItChanged) {
  const std::string folder = testing::temporary_folder();
  testing::run_ranks(2, [&](World& world) {
    const auto group = everyone(world);
    Checkpointer checkpointer(*group, folder, {.keep = 0});
    auto received = [&, last = int64_t{0}]() mutable {
      const int64_t all = world.ledger().bytes("world/plan");
      return all - std::exchange(last, all);
    };
    save_at(checkpointer, *group, 1);
    const int64_t first = received();
    save_at(checkpointer, *group, 2);
    const int64_t second = received();
    EXPECT_GT(first, 500);
    EXPECT_LT(second, 100);
    auto more = state_at(*group, 3);  // one more tensor, on rank 1
    if (group->rank() == 1)
      more.push_back(whole_entry("more", "parameter", at::full({2}, 7, at::kFloat)));
    checkpointer.save(run_at(3), more);
    EXPECT_GT(received(), first);
    for (auto& entry : more)
      for (auto& part : entry.parts) part.local.zero_();
    load_checkpoint(*group, folder + "/step-3", more);
    if (group->rank() == 1) EXPECT_TRUE(more.back().parts[0].local.eq(7).all().item<bool>());
    save_at(checkpointer, *group, 4);
  });
  expect_whole(folder + "/step-2", 2);
  expect_whole(folder + "/step-4", 4);
}

// --- the local folder ---

TEST(Checkpointer, ALocalFolderIsSavedToFirstAndCopied) {
  const NoHook reset;
  for (bool async : {false, true}) {
    SCOPED_TRACE(async);
    const std::string folder = testing::temporary_folder(), local = testing::temporary_folder();
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
          EXPECT_EQ(checkpointer.newest(), text(local, "/step-", step));
          EXPECT_EQ(newest_checkpoint(world, folder, local), checkpointer.newest());
        }
      }
      checkpointer.finish();
      EXPECT_EQ(checkpointer.newest(), folder + "/step-3");
    });
    set_disk_hook(nullptr);
    EXPECT_EQ(steps_in(folder), (std::set<int64_t>{2, 3}));
    EXPECT_EQ(steps_in(local), (std::set<int64_t>{3}));
    expect_whole(folder + "/step-2", 2);
    expect_whole(folder + "/step-3", 3);
    expect_whole(local + "/step-3", 3);
  }
}

TEST(Checkpointer, ACopyThatFailsIsToldAndTheLocalCheckpointIsWhatARunGoesOnFrom) {
  const NoHook reset;
  const std::string folder = testing::temporary_folder(), local = testing::temporary_folder();
  on_ranks(2, [&](Communicator& world) {
    Checkpointer checkpointer(world, folder, {.local = local});
    save_at(checkpointer, world, 1);
    checkpointer.finish();
    EXPECT_EQ(newest_checkpoint(world, folder, local), local + "/step-1");
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
    EXPECT_EQ(newest_checkpoint(world, folder, local), local + "/step-2");
  });
  EXPECT_EQ(steps_in(folder), (std::set<int64_t>{1}));
  expect_whole(local + "/step-2", 2);
  // A broken local one, and one that not all ranks see, is not what a run goes on from.
  on_ranks(2, [&](Communicator& world) {
    const std::string mine = world.rank() == 0 ? local : local + "-elsewhere";
    EXPECT_EQ(newest_checkpoint(world, folder, mine), folder + "/step-1");
  });
  fs::resize_file(local + "/step-2/state-00000-of-00002.safetensors", 10);
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
    for (const auto& name : names_in(local)) EXPECT_EQ(name, ".lock");
}

}  // namespace
}  // namespace phalanx
