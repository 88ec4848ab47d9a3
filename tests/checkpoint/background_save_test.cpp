// Saves that go on while training does.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>

#include "phalanx/comm/ledger.h"
#include "tests/checkpoint/saved_steps.h"

namespace phalanx {
namespace {

namespace fs = std::filesystem;

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

}  // namespace
}  // namespace phalanx
