// A run's folder of checkpoints: what is kept, when, and who may write there.
#include "phalanx/checkpoint/checkpointer.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <pwd.h>
#include <sys/inotify.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

#include "phalanx/base/files.h"
#include "phalanx/checkpoint/checkpoint.h"
#include "phalanx/checkpoint/folder.h"
#include "phalanx/checkpoint/lock.h"
#include "tests/checkpoint/saved_steps.h"
#include "tests/support/sentence.h"

namespace phalanx {
namespace {

namespace fs = std::filesystem;
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
    Checkpointer second(world, folder, {.keep = 3});
    second.warn_of_later(0);
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
  on_ranks(
      2, [&](Communicator& world) { Checkpointer(world, folder, {.keep = 3}).warn_of_later(700); });
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

// A broken checkpoint that was passed over is not said to be another run's.
TEST(Checkpointer, ABrokenCheckpointIsNotOneOfLaterSteps) {
  const std::string folder = testing::temporary_folder();
  on_ranks(1, [&](Communicator& world) {
    Checkpointer saving(world, folder, {.keep = 0});
    for (int64_t step : {1, 2}) save_at(saving, world, step);
  });
  std::filesystem::resize_file(folder + "/step-2/state-00000-of-00001.safetensors", 10);
  ::testing::internal::CaptureStderr();
  on_ranks(1,
           [&](Communicator& world) { Checkpointer(world, folder, {.keep = 0}).warn_of_later(1); });
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

// A save costs the same however many there are: none of them is read again. Not those that were
// there when the run began either, which the first save reads.
TEST(Checkpointer, ASaveDoesNotReadTheOnesBefore) {
  for (const SaveOptions& options :
       {SaveOptions{.keep = 0}, SaveOptions{.keep = 5}, SaveOptions{.keep = 1, .keep_every = 1}}) {
    SCOPED_TRACE(text("keep ", options.keep));
    const std::string folder = testing::temporary_folder();
    on_ranks(1, [&](Communicator& world) {
      save_checkpoint(world, folder, run_at(1), state_at(world, 1), 0);
      Checkpointer checkpointer(world, folder, options);
      save_at(checkpointer, world, 2);
      const int events = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
      ASSERT_GE(events, 0);
      for (const char* step : {"/step-1", "/step-2"})
        ASSERT_GE(inotify_add_watch(events, (folder + step).c_str(), IN_OPEN), 0);
      for (int64_t step : {3, 4}) save_at(checkpointer, world, step);
      char event[4096];
      EXPECT_EQ(read(events, event, sizeof(event)), -1) << "something was opened";
      EXPECT_TRUE(fs::exists(folder + "/step-1/manifest.json"));
      read_file(folder + "/step-1/manifest.json", ExitCode::checkpoint);
      EXPECT_GT(read(events, event, sizeof(event)), 0) << "the watch sees nothing";
      close(events);
    });
    int64_t created = 0;  // and yet each is later than those before
    for (int64_t step : {1, 2, 3, 4}) {
      const auto manifest = read_manifest(*open_storage(folder), text("step-", step));
      EXPECT_GT(manifest.created, created);
      created = manifest.created;
    }
  }
}

// What a save remembers of a step is not what lies there after it was saved again.
TEST(Checkpointer, AStepThatIsSavedAgainIsTheNewest) {
  const std::string folder = testing::temporary_folder();
  on_ranks(2, [&](Communicator& world) {
    Checkpointer checkpointer(world, folder, {.keep = 2});
    for (int64_t step : {1, 2, 1, 3}) save_at(checkpointer, world, step);
  });
  EXPECT_EQ(steps_in(folder), (std::set<int64_t>{1, 3}));
}

void set_created(const std::string& path, int64_t created) {
  Manifest manifest = read_manifest(path);
  manifest.created = created;
  const std::string json = to_json(manifest);
  replace_file(path + "/manifest.json", json, ExitCode::checkpoint);
  replace_file(path + "/manifest.json.xxh128", manifest_hash_line(json), ExitCode::checkpoint);
}

// As if the clock had been set back since.
TEST(Checkpointer, ASaveIsTheNewestWhateverTheClockSays) {
  const std::string folder = testing::temporary_folder();
  const auto save = [&](int64_t step) {
    return ThreadRanks::run(2, [&](Communicator& world) {
      Checkpointer checkpointer(world, folder, {.keep = 1});
      save_at(checkpointer, world, step);
      checkpointer.finish();
      EXPECT_EQ(newest_checkpoint(world, folder), text(folder, "/step-", step));
    })[0];
  };
  EXPECT_EQ(save(1), "");
  const int64_t ahead = read_manifest(folder + "/step-1").created + int64_t{3600} * 1'000'000'000;
  set_created(folder + "/step-1", ahead);
  EXPECT_EQ(save(2), "");
  EXPECT_EQ(steps_in(folder), (std::set<int64_t>{2}));
  EXPECT_GT(read_manifest(folder + "/step-2").created, ahead);
  // Readers refuse a later time than this: then the save is refused, and not its checkpoint.
  set_created(folder + "/step-2", Manifest::latest_creation);
  testing::expect_contains(save(3), {"rank 0: ", "beyond the year 2100", "set the clock"});
  EXPECT_EQ(names_in(folder), (std::set<std::string>{".lock", "latest", "step-2"}));
  EXPECT_THROW(creation_time_after(Manifest::latest_creation), Error);
  EXPECT_GT(creation_time_after(0), 0);
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
       {std::string("another process writes in " + folder), text("host ", host),
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

// An empty place goes with its lock when its owner leaves. Here that happens while another one is
// in open(), where a lease on the file keeps it: what it locks then is in no folder any more.
TEST(Checkpointer, ALockThatWasJustRemovedIsNone) {
  const std::string place = testing::temporary_folder(), path = place + "/.lock";
  const Descriptor file(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  const auto before = signal(SIGIO, SIG_IGN);  // how the system says that the lease is in the way
  if (fcntl(file.get(), F_SETLEASE, F_WRLCK) != 0) {
    signal(SIGIO, before);
    GTEST_SKIP() << "no leases";
  }
  std::string said;
  std::thread other([&] {
    try {
      const FolderLock lock(place);
      said = "locked";
    } catch (const Error& error) {
      said = error.what();
    }
  });
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (fcntl(file.get(), F_GETLEASE) == F_WRLCK && std::chrono::steady_clock::now() < limit)
    usleep(1000);
  fs::remove(path);
  fcntl(file.get(), F_SETLEASE, F_UNLCK);
  other.join();
  signal(SIGIO, before);
  EXPECT_EQ(said, "another process has just removed " + path + "; start again");
}

// In a folder of a group. Not as root, whom no permission stops.
TEST(Checkpointer, ALockThatAnotherUserMadeIsNamedWithItsOwner) {
  const std::string folder = testing::temporary_folder();
  fs::permissions(folder, fs::perms::all);
  on_ranks(1, [&](Communicator& world) { Checkpointer(world, folder); });
  fs::permissions(folder + "/.lock", fs::perms(0444));
  const passwd* owner = getpwuid(geteuid());
  const std::string name = owner ? owner->pw_name : text("user ", geteuid());
  const auto statuses = testing::fork_ranks(1, [&](const WorldInfo&) {
    if (geteuid() == 0) EXPECT_EQ(setuid(65534), 0);
    const auto errors =
        ThreadRanks::run(1, [&](Communicator& world) { Checkpointer(world, folder); });
    testing::expect_contains(errors[0], {"cannot open " + folder + "/.lock: Permission denied",
                                         "the file is " + name + "'s: remove it when"});
    return 0;
  });
  EXPECT_EQ(statuses[0], 0);
}

}  // namespace
}  // namespace phalanx
