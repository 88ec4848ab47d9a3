// How `phalanx run` ends: signals, time to save, a killed agent.
#include <set>
#include <sstream>

#include "tests/cli/run_command.h"

namespace phalanx::testing {
namespace {

TEST(Run, InterruptsEndAllRanksAndNothingStaysBehind) {
  for (const auto& [signal, code] : {std::pair{SIGINT, 130}, {SIGTERM, 143}, {SIGHUP, 129}}) {
    const std::string marker = unique_marker();
    Program run(with_binary(ranks_of(3, "sleep 100 & echo up $RANK; wait", marker)));
    for (const std::string rank : {"up 0", "up 1", "up 2"}) ASSERT_TRUE(run.wait_for(rank));
    run.signal(signal);
    const auto ended = run.finish();
    EXPECT_EQ(ended.code, code) << ended.error;
    EXPECT_LT(ended.seconds, in_time);
    EXPECT_TRUE(contains(ended.error, "asked the ranks to stop")) << ended.error;
    EXPECT_EQ(processes_with(marker).size(), 0u);
  }
}

// `phalanx run` as nohup or a script's background starts it: with these signals ignored.
std::vector<std::string> with_ignored(const std::string& signals,
                                      const std::vector<std::string>& arguments) {
  std::vector<std::string> words{"sh", "-c", "trap '' " + signals + "; exec \"$@\"", "sh"};
  for (const auto& argument : with_binary(arguments)) words.push_back(argument);
  return words;
}

TEST(Run, SignalsThatAreIgnoredAtTheStartStayIgnored) {
  Program run(with_ignored("HUP INT", ranks_of(2,
                                               "trap 'exit 75' TERM; kill -HUP $$; kill -INT $$; "
                                               "echo up $RANK; while :; do sleep 0.05; done")));
  ASSERT_TRUE(run.wait_for("up 0") && run.wait_for("up 1"));
  run.signal(SIGHUP);
  run.signal(SIGINT);
  run.signal(SIGTERM);
  const auto ended = run.finish();
  EXPECT_EQ(ended.code, 75) << ended.error;
  EXPECT_TRUE(contains(ended.error, "SIGTERM: asked the ranks to stop")) << ended.error;
}

TEST(Run, TheAgentCanStopRanksWhereSigtermIsIgnored) {
  const auto run = run_program(
      with_ignored("TERM", ranks_of(2, "test $RANK = 0 && exec sleep 100; sleep 0.2; exit 7")));
  EXPECT_EQ(run.code, 7) << run.error;
  EXPECT_FALSE(contains(run.error, "did not stop when asked")) << run.error;
}

TEST(Run, GraceIsHowLongRanksMaySave) {
  auto command =
      with_binary(ranks_of(2, "trap '' TERM; echo up $RANK; while :; do sleep 0.05; done"));
  command.insert(command.begin() + 2, "--grace=1");
  Program run(command);
  ASSERT_TRUE(run.wait_for("up 0") && run.wait_for("up 1"));
  run.signal(SIGINT);
  const auto ended = run.finish();
  EXPECT_EQ(ended.code, 130) << ended.error;
  EXPECT_LT(ended.seconds, in_time);
  EXPECT_TRUE(contains(ended.error, "with 1 s to save (--grace)")) << ended.error;
  EXPECT_TRUE(contains(ended.error, "rank 1 did not stop when asked within 1 s (--grace)"))
      << ended.error;
}

TEST(Run, RanksThatSaveOnTermEndTheRunWith75AndASecondInterruptKills) {
  Program saves(with_binary(
      ranks_of(2, "trap 'echo saved; exit 75' TERM; echo up $RANK; while :; do sleep 0.05; done")));
  ASSERT_TRUE(saves.wait_for("up 0") && saves.wait_for("up 1"));
  saves.signal(SIGINT);
  const auto saved = saves.finish();
  EXPECT_EQ(saved.code, 75) << saved.error;
  EXPECT_TRUE(contains(saved.out, "saved") && contains(saved.error, "[rank 1] saved"));

  Program ignores(
      with_binary(ranks_of(2, "trap '' TERM; echo up $RANK; while :; do sleep 0.05; done")));
  ASSERT_TRUE(ignores.wait_for("up 0") && ignores.wait_for("up 1"));
  ignores.signal(SIGINT);
  ASSERT_TRUE(ignores.wait_for("once more ends them at once"));
  ignores.signal(SIGINT);
  const auto killed = ignores.finish();
  EXPECT_EQ(killed.code, 130) << killed.error;
  EXPECT_LT(killed.seconds, in_time);
}

// A program that leaves with 0 because it was asked to stop has not done all that it was to do.
TEST(Run, ProgramsThatLeaveWith0WhenAskedToStopWereInterrupted) {
  Program run(
      with_binary(ranks_of(2, "trap 'exit 0' TERM; echo up $RANK; while :; do sleep 0.05; done")));
  ASSERT_TRUE(run.wait_for("up 0") && run.wait_for("up 1"));
  run.signal(SIGTERM);
  const auto ended = run.finish();
  EXPECT_EQ(ended.code, 143) << ended.error;
  EXPECT_EQ(last_block(ended.error), "");
}

TEST(Run, AKilledAgentTakesEverythingAlong) {
  const std::string marker = unique_marker();
  Program run(with_binary(ranks_of(2, "sh -c 'sleep 100; :' $0 & echo up $RANK; wait", marker)));
  ASSERT_TRUE(run.wait_for("up 0") && run.wait_for("up 1"));
  EXPECT_GE(processes_with(marker).size(), 5u);  // the agent, the ranks, and what they started
  run.signal(SIGKILL);
  run.finish();
  EXPECT_EQ(await_processes(marker, 0, 2s).size(), 0u);
}

// The kernel's parent-death signal is what is left when the guard has been killed too.
TEST(Run, RanksEndWithAKilledAgentThatHasNoGuard) {
  const std::string marker = unique_marker();
  Program run(with_binary(ranks_of(2, "echo up $RANK; while :; do sleep 0.05; done", marker)));
  ASSERT_TRUE(run.wait_for("up 0") && run.wait_for("up 1"));
  bool killed = false;  // the ranks may be up before the guard has its name
  for (int attempt = 0; attempt < 2000 && !killed; ++attempt, usleep(5000))
    for (const pid_t process : processes_with(marker)) {
      std::string name;
      std::getline(std::ifstream(text("/proc/", process, "/comm")), name);
      if (name == "phalanx guard") killed = kill(process, SIGKILL) == 0;
    }
  EXPECT_TRUE(killed);
  run.signal(SIGKILL);
  run.finish();
  EXPECT_EQ(await_processes(marker, 0, 2s).size(), 0u);
}

TEST(Run, ProgramsThatRanksLeaveBehindAreEnded) {
  const std::string marker = unique_marker();
  // One in the rank's process group, one in a session of its own; both hold the rank's output.
  const auto run = run_phalanx(
      ranks_of(2, "sh -c 'sleep 100; :' $0 & setsid sh -c 'sleep 100; :' $0 & sleep 0.1; echo done",
               marker));
  EXPECT_EQ(run.code, 0) << run.error;
  EXPECT_EQ(run.out, "done\n");
  EXPECT_LT(run.seconds, in_time);
  EXPECT_EQ(processes_with(marker).size(), 0u);
}

// What a shell started before it became the agent is not the agent's to end.
TEST(Run, ProgramsThatWereThereBeforeAreLeftAlone) {
  const auto run = run_program({"sh", "-c", "{ sleep 3; echo helper done; } & exec \"$@\"", "sh",
                                PHALANX_BINARY, "run", "--", "echo", "rank done"});
  EXPECT_EQ(run.code, 0) << run.error;
  EXPECT_TRUE(contains(run.out, "rank done\n") && contains(run.out, "helper done\n")) << run.out;
}

// Our own commands: forked from a process that has loaded LibTorch.
TEST(LoadedRanks, StartTogetherWithTheirThreadsAndEndWithTheirAgent) {
  const auto run = run_phalanx({"run", "--nproc-per-node=2", "--", "doctor", "--json"},
                               {.environment = {{"OMP_NUM_THREADS", "1"}}});
  EXPECT_EQ(run.code, 0) << run.error;
  EXPECT_TRUE(contains(run.out, "\"threads\":1")) << run.out;
  EXPECT_TRUE(contains(run.error, "[rank 1] {\"versions\"")) << run.error;
  EXPECT_EQ(std::count(run.out.begin(), run.out.end(), '\n'), 1);

  const auto wrong = run_phalanx({"run", "--nproc-per-node=2", "--", "doctor", "--jsn"});
  EXPECT_EQ(wrong.code, 2);
  const std::string block = last_block(wrong.error);
  EXPECT_TRUE(contains(block, "exit code 2 (command line or config)")) << wrong.error;
  EXPECT_TRUE(contains(block, "error: phalanx doctor: ") && contains(block, "'--json'?"));
}

TEST(LoadedRanks, HelpIsShownOnce) {
  for (const std::string command : {"doctor", "generate", "train", "config"}) {
    SCOPED_TRACE(command);
    const auto help = run_phalanx({"run", "--nproc-per-node=2", "--", command, "--help"});
    EXPECT_EQ(help.code, 0) << help.error;
    EXPECT_EQ(help.out, run_phalanx({command, "--help"}).out);
    EXPECT_FALSE(contains(help.error, "[rank 1]")) << help.error;
  }
}

// At whatever moment: before, while and after LibTorch is loaded and the ranks are forked.
TEST(LoadedRanks, AnAgentThatIsKilledOrInterruptedAtAnyMomentLeavesNothing) {
  for (const int signal : {SIGKILL, SIGINT})
    for (const auto delay : {0ms, 10ms, 100ms, 200ms, 300ms, 400ms, 600ms}) {
      SCOPED_TRACE(text("signal ", signal, " after ", delay.count(), " ms"));
      const std::string marker = unique_marker();  // not printed, but in the command line
      Program run({PHALANX_BINARY, "run", "--nproc-per-node", "2", "--log-dir",
                   (std::filesystem::temp_directory_path() / marker).string(), "--", "doctor"});
      std::this_thread::sleep_for(delay);
      run.signal(signal);
      const auto ended = run.finish();
      EXPECT_LT(ended.seconds, in_time);
      const bool possible = signal == SIGKILL || ended.code == 130 || ended.code == 0;
      EXPECT_TRUE(possible) << ended.code << "\n" << ended.error;
      EXPECT_EQ(await_processes(marker, 0, 2s).size(), 0u);
      std::filesystem::remove_all(std::filesystem::temp_directory_path() / marker);
    }
}

#ifndef PHALANX_SANITIZED  // which needs terabytes of address space
TEST(LoadedRanks, ALibraryThatDoesNotLoadIsOneSentence) {
  const auto run =
      run_program({"sh", "-c", text("ulimit -v 200000; exec ", PHALANX_BINARY, " run -- doctor")});
  EXPECT_EQ(run.code, 3) << run.error;
  EXPECT_TRUE(contains(run.error, "error: cannot load LibTorch: ")) << run.error;
  EXPECT_FALSE(contains(run.error, "failed first")) << run.error;
}
#endif

}  // namespace
}  // namespace phalanx::testing
