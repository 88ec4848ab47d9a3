// `phalanx run` from outside: what the user and the batch system see.

#include <map>
#include <set>
#include <sstream>

#include "phalanx/base/cores.h"
#include "phalanx/base/listener.h"
#include "tests/cli/run_command.h"

namespace phalanx::testing {
namespace {

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
           {{"--grace=0", "--", "true"}, "--grace must be a whole number from 1"},
           {{"--nproc-per-node", "2"}, "no command to run"},
           {{"--"}, "no command to run"},
           {{"--", "run", "true"}, "run cannot start itself"},
           {{"--", "./no/such/program"}, "'./no/such/program' is neither"},
           {{"--", "/"}, "'/' is neither"},
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
  const Listener taken = listen_on(0, Reach::this_host, "");
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

TEST(Run, ALogThatCannotBeWrittenIsSaid) {
  std::string folder = (std::filesystem::temp_directory_path() / "phalanx-run-XXXXXX").string();
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  std::filesystem::create_symlink("/dev/full", folder + "/rank-0.log");
  const auto run = run_phalanx({"run", "--log-dir", folder, "--", "echo", "hi"});
  EXPECT_EQ(run.code, 0);
  EXPECT_EQ(run.out, "hi\n");
  EXPECT_TRUE(
      contains(run.error, "cannot write " + folder + "/rank-0.log: No space left on device"))
      << run.error;
  std::filesystem::remove_all(folder);
}

TEST(Run, OutputThatCannotBeWrittenIsAnError) {
  for (const auto& [command, code] : std::vector<std::pair<std::string, int>>{
           {"echo r", 3}, {"yes", 3}, {"sh -c 'echo r; exit 7'", 7}}) {
    SCOPED_TRACE(command);
    const auto run =
        run_program({"sh", "-c", text(PHALANX_BINARY, " run -- ", command, " > /dev/full")});
    EXPECT_EQ(run.code, code) << run.error;
    const std::string said = "cannot write the ranks' output: No space left on device";
    const size_t first = run.error.find(said);
    EXPECT_NE(first, std::string::npos) << run.error;
    EXPECT_EQ(run.error.rfind(said), first) << run.error;
    EXPECT_EQ(contains(run.error, "failed first"), code == 7) << run.error;
  }
  const auto help =
      run_program({"sh", "-c", text(PHALANX_BINARY, " run -- train --help > /dev/full")});
  EXPECT_EQ(help.code, 3);
  EXPECT_TRUE(contains(help.error, "cannot write to stdout")) << help.error;
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

// stdout and stderr in one pipe, as in a batch script's `2>&1 | tee`.
TEST(Run, ASlowReaderOfBothStreamsSeesWholeLines) {
  const auto run = run_program(
      {"sh", "-c",
       text(PHALANX_BINARY,
            " run --nproc-per-node 2 -- sh -c 'i=0; while [ $i -lt 200 ]; do "
            "printf %03000d\\\\n $RANK; i=$((i+1)); done' 2>&1 | { sleep 0.3; cat; }")});
  std::map<std::string, int> lines;
  std::istringstream stream(run.out);
  for (std::string line; std::getline(stream, line);)
    if (contains(line, "0000000")) ++lines[line];
  const std::string zeros(2999, '0');
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[zeros + "0"], 200);
  EXPECT_EQ(lines["[rank 1] " + zeros + "1"], 200);
}

TEST(Run, AReaderThatLeavesEndsTheRun) {
  const auto run = run_program(
      {"sh", "-c", text(PHALANX_BINARY, " run -- yes 2>/dev/null | head -n 1")}, {.deadline = 10s});
  EXPECT_EQ(run.code, 0);
  EXPECT_EQ(run.out, "y\n");
  // The help comes from the process that loads the ranks; here once the reader has surely gone.
  const auto help = run_program(
      {"sh", "-c",
       text("{ (trap '' PIPE; while echo; do sleep 0.01; done 2>/dev/null); ", PHALANX_BINARY,
            " run --nproc-per-node 2 train --help; echo code $? >&2; } | true")});
  EXPECT_TRUE(contains(help.error, "code 141\n")) << help.error;
  EXPECT_FALSE(contains(help.error, "error:")) << help.error;
}

}  // namespace
}  // namespace phalanx::testing
