// `phalanx run` from outside: what the user and the batch system see.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <thread>

#include "phalanx/launch/node.h"
#include "tests/support/process.h"

namespace phalanx::testing {
namespace {

using namespace std::chrono_literals;

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// The agent takes at most 3.5 s after a failure; the rest is for a machine that is busy with
// others.
constexpr double in_time = 12;

// `phalanx run --nproc-per-node RANKS -- sh -c SCRIPT marker`; the marker finds the processes.
std::vector<std::string> ranks_of(int ranks, const std::string& script,
                                  const std::string& marker = "sh") {
  return {"run", "--nproc-per-node", std::to_string(ranks), "--", "sh", "-c", script, marker};
}

std::vector<std::string> with_binary(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), PHALANX_BINARY);
  return arguments;
}

// The last lines of stderr, between two rules.
std::string last_block(const std::string& error) {
  const std::string rule(72, '-');
  const size_t end = error.rfind(rule);
  const size_t begin = end == std::string::npos || end == 0 ? end : error.rfind(rule, end - 1);
  return begin == std::string::npos || end + rule.size() + 1 != error.size() ? ""
                                                                             : error.substr(begin);
}

TEST(Run, ExitCodesAreThoseOfTheFirstFailingRank) {
  struct Case {
    std::string script, said;
    int code;
  };
  for (const auto& [script, said, code] : std::vector<Case>{
           {"true", "", 0},
           {"exit 75", "", 75},
           {"test $RANK = 0 || exit 75", "", 75},
           {"false", " of 2 failed first: exit code 1\n", 1},
           {"exit 7", "exit code 7\n", 7},
           {"test $RANK = 0 && exec sleep 100; exit 7", "rank 1 of 2 failed first: exit code 7", 7},
           {"test $RANK = 1 && exec sleep 100; kill -9 $$",
            "rank 0 of 2 failed first: killed by "
            "signal 9 (SIGKILL",
            137},
           {"kill -9 $$", "killed by signal 9", 137},
           {"test $RANK = 0 && exec sleep 100; kill -SEGV $$",
            "rank 1 of 2 failed first: killed by signal 11 (SIGSEGV: Segmentation fault)", 139},
           {"kill -TERM $$", "killed by signal 15", 143}}) {
    SCOPED_TRACE(script);
    const auto run = run_phalanx(ranks_of(2, script));
    EXPECT_EQ(run.code, code) << run.error;
    EXPECT_LT(run.seconds, in_time);
    if (said.empty())
      EXPECT_EQ(last_block(run.error), "");
    else
      EXPECT_TRUE(contains(last_block(run.error), said)) << run.error;
  }
}

TEST(Run, TheRootCauseWinsOverRanksThatLostAPeer) {
  // Rank 0 notices first, and is reaped first.
  const auto run = run_phalanx(
      ranks_of(3,
               "case $RANK in 0) exit 4;; 1) sleep 0.4; echo bad data >&2; exit 5;; esac; "
               "sleep 100"));
  EXPECT_EQ(run.code, 5);
  EXPECT_TRUE(contains(last_block(run.error), "rank 1 of 3 failed first: exit code 5\n"));
  EXPECT_TRUE(contains(last_block(run.error), "    bad data\nthen rank 0: exit code 4\n"))
      << run.error;
  EXPECT_LT(run.seconds, in_time);
  // A rank that hangs is lost by all the others: nobody else is to blame.
  const auto hung = run_phalanx(ranks_of(3, "test $RANK = 2 && exec sleep 100; exit 4"));
  EXPECT_EQ(hung.code, 4);
  EXPECT_LT(hung.seconds, in_time);
}

TEST(Run, ARankThatIgnoresTermIsKilledInTime) {
  const std::string marker = unique_marker();
  const auto run = run_phalanx(ranks_of(
      3, "trap '' TERM; test $RANK = 1 && sleep 0.3 && exit 9; while :; do sleep 0.05; done",
      marker));
  EXPECT_EQ(run.code, 9);
  EXPECT_GT(run.seconds, 2);
  EXPECT_LT(run.seconds, in_time);
  EXPECT_TRUE(contains(run.error, "rank 2 did not stop when asked and is killed")) << run.error;
  EXPECT_EQ(await_processes(marker, 0, 0ms).size(), 0u);
}

TEST(Run, ArgumentsArePassedAsTheyAre) {
  const std::string seen = "--r=16|--np|3|--help|--|--x||a b|";
  std::vector<std::string> tail{"printf", "%s|", "--r=16", "--np", "3",
                                "--help", "--",  "--x",    "",     "a b"};
  for (const auto& options : std::vector<std::vector<std::string>>{
           {"--nproc-per-node", "2"}, {"--nproc_per_node=2"}, {"--nproc-per-node=2", "--"}}) {
    std::vector<std::string> arguments{"run"};
    arguments.insert(arguments.end(), options.begin(), options.end());
    arguments.insert(arguments.end(), tail.begin(), tail.end());
    const auto run = run_phalanx(arguments);
    EXPECT_EQ(run.code, 0) << run.error;
    EXPECT_EQ(run.out, seen);
    EXPECT_TRUE(contains(run.error, "[rank 1] " + seen)) << run.error;
  }
}

TEST(Run, WrongCommandLinesStartNothing) {
  struct Case {
    std::vector<std::string> arguments;
    std::string sentence;
  };
  for (const auto& [arguments, sentence] : std::vector<Case>{
           {{"--nproc-per-node=0", "--", "true"}, "--nproc-per-node must be a whole number from 1"},
           {{"--nproc-per-node=-1", "--", "true"}, "not '-1'"},
           {{"--nproc_per_node", "abc", "--", "true"}, "not 'abc'"},
           {{"--nproc-per-node", "1e3", "--", "true"}, "not '1e3'"},
           {{"--nproc-per-nod", "2", "--", "true"}, "did you mean '--nproc-per-node'?"},
           {{"--master-port=65536", "--", "true"}, "--master-port must be"},
           {{"--nproc-per-node", "2"}, "no command to run"},
           {{"--"}, "no command to run"},
           {{"--", "run", "true"}, "run cannot start itself"},
           {{"--", "./no/such/program"}, "'./no/such/program' is neither"},
           {{"--", "trian", "x"}, "did you mean 'train'?"}}) {
    auto words = arguments;
    words.insert(words.begin(), "run");
    const auto run = run_phalanx(words);
    EXPECT_EQ(run.code, 2) << sentence;
    EXPECT_TRUE(contains(run.error, sentence)) << run.error;
    EXPECT_EQ(std::count(run.error.begin(), run.error.end(), '\n'), 1) << run.error;
  }
}

TEST(Run, RanksGetTorchrunsEnvironmentAndTheirShareOfCores) {
  const auto run = run_phalanx(
      ranks_of(3,
               "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $GROUP_RANK $MASTER_ADDR "
               "$MASTER_PORT $OMP_NUM_THREADS ${SLURM_PROCID-unset}"),
      {.environment = {
           {"RANK", "7"}, {"WORLD_SIZE", "9"}, {"SLURM_PROCID", "0"}, {"OMP_NUM_THREADS", "5"}}});
  ASSERT_EQ(run.code, 0) << run.error;
  std::string port;
  std::istringstream(run.out.substr(run.out.find("127.0.0.1") + 9)) >> port;
  auto line = [&](int rank) {
    return text(rank, " 3 ", rank, " 3 0 127.0.0.1 ", port, " 5 unset\n");
  };
  EXPECT_EQ(run.out, line(0));
  EXPECT_TRUE(contains(run.error, "[rank 1] " + line(1)) &&
              contains(run.error, "[rank 2] " + line(2)))
      << run.error;
  EXPECT_TRUE(contains(run.error, "3 ranks, OMP_NUM_THREADS=5 as given"));
  const auto shared =
      run_program({"env", "-u", "OMP_NUM_THREADS", PHALANX_BINARY, "run", "--nproc-per-node=1",
                   "--", "sh", "-c", "echo $OMP_NUM_THREADS"});
  EXPECT_EQ(shared.out, text(available_cores(), "\n"));
}

TEST(Run, APortInUseIsRefusedAndTwoLaunchersDoNotMeet) {
  const Listener taken = listen_on(0);
  for (const std::string command : {"true", "doctor"}) {
    const auto run = run_phalanx({"run", text("--master-port=", taken.port), "--", command});
    EXPECT_EQ(run.code, 3);
    EXPECT_TRUE(contains(run.error, text("port ", taken.port, " is in use"))) << run.error;
  }
  const auto command = with_binary(ranks_of(2, "echo $MASTER_PORT; sleep 0.2"));
  Program first(command), second(command);
  const auto a = first.finish(), b = second.finish();
  EXPECT_EQ(a.code + b.code, 0);
  EXPECT_NE(a.out, b.out);
}

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
  bool guarded = false;
  for (const pid_t process : processes_with(marker)) {
    std::string name;
    std::getline(std::ifstream(text("/proc/", process, "/comm")), name);
    if (name == "phalanx guard") guarded = kill(process, SIGKILL) == 0;
  }
  EXPECT_TRUE(guarded);
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

TEST(Run, EightRanksFitInto64DescriptorsAndFewerAreRefused) {
  const std::string command = text(PHALANX_BINARY, " run --nproc-per-node 8 -- sh -c 'echo $RANK'");
  const auto fits = run_program({"sh", "-c", "ulimit -n 64; exec " + command});
  EXPECT_EQ(fits.code, 0) << fits.error;
  EXPECT_EQ(fits.out, "0\n");
  EXPECT_TRUE(contains(fits.error, "[rank 7] 7"));
  const auto refused = run_program({"sh", "-c", "ulimit -n 32; exec " + command});
  EXPECT_EQ(refused.code, 3);
  EXPECT_TRUE(contains(refused.error, "8 ranks needs 48 open files and the limit is 32"))
      << refused.error;
}

TEST(Run, LogFilesHoldEachRanksOutput) {
  std::string folder = (std::filesystem::temp_directory_path() / "phalanx-run-XXXXXX").string();
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const auto run =
      run_phalanx({"run", "--nproc-per-node=2", "--log-dir", folder + "/logs", "--", "sh", "-c",
                   "echo out $RANK; echo error $RANK >&2; "
                   "test $RANK = 0 && exit 0; sleep 0.3; exit 1"});
  EXPECT_EQ(run.code, 1);
  for (int rank : {0, 1}) {
    std::ifstream file(text(folder, "/logs/rank-", rank, ".log"));
    std::multiset<std::string> lines;
    for (std::string line; std::getline(file, line);) lines.insert(line);
    EXPECT_EQ(lines, (std::multiset<std::string>{text("out ", rank), text("error ", rank)}));
  }
  EXPECT_TRUE(contains(last_block(run.error), "all it wrote: " + folder + "/logs/rank-1.log"));
  const auto refused = run_phalanx({"run", "--log-dir", "/dev/null/logs", "--", "true"});
  EXPECT_EQ(refused.code, 3);
  EXPECT_TRUE(contains(refused.error, "cannot make --log-dir '/dev/null/logs'")) << refused.error;
  std::filesystem::remove_all(folder);
}

TEST(Run, InputGoesToRank0AndLongOutputComesWhole) {
  const auto run = run_phalanx(ranks_of(2, "cat; seq 1 $((2 - RANK))"), {.input = "given\n"});
  EXPECT_EQ(run.code, 0);
  EXPECT_EQ(run.out, "given\n1\n2\n");
  EXPECT_TRUE(run.error.ends_with("\n[rank 1] 1\n")) << run.error;
  const auto whole = run_phalanx(ranks_of(1, "seq 1 200000; printf end"));
  EXPECT_EQ(whole.code, 0);
  EXPECT_EQ(std::count(whole.out.begin(), whole.out.end(), '\n'), 200000);
  EXPECT_TRUE(whole.out.ends_with("\n200000\nend"));
}

TEST(Run, AReaderThatLeavesEndsTheRun) {
  const auto run = run_program(
      {"sh", "-c", text(PHALANX_BINARY, " run -- yes 2>/dev/null | head -n 1")}, {.deadline = 10s});
  EXPECT_EQ(run.code, 0);
  EXPECT_EQ(run.out, "y\n");
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
