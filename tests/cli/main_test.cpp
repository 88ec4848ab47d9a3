#include <gtest/gtest.h>

#include <fstream>

#include "tests/support/process.h"
#include "tests/support/sentence.h"

namespace phalanx::testing {
namespace {

std::vector<std::string> listed_commands() {
  const std::string help = run_phalanx({"--help"}).out;
  std::istringstream lines(help.substr(help.find("commands:")));
  std::vector<std::string> names;
  std::string line;
  for (std::getline(lines, line); std::getline(lines, line) && line.starts_with("  ");)
    names.push_back(line.substr(2, line.find(' ', 2) - 2));
  return names;
}

TEST(Main, HelpNamesTheCommandsAndEachHasItsOwn) {
  const auto help = run_phalanx({"--help"});
  EXPECT_EQ(help.code, 0);
  EXPECT_EQ(help.error, "");
  EXPECT_TRUE(contains(help.out, "exit codes: 0 done; 1 the check")) << help.out;
  const auto names = listed_commands();
  EXPECT_GE(names.size(), 3u);
  for (const auto& name : names) {
    SCOPED_TRACE(name);
    const auto own = run_phalanx({name, "--help"});
    EXPECT_EQ(own.code, 0) << own.error;
    EXPECT_TRUE(contains(own.out, "phalanx " + name)) << own.out;
    EXPECT_EQ(own.error, "");
  }
  EXPECT_EQ(run_phalanx({"help", "run"}).out, run_phalanx({"run", "--help"}).out);
  EXPECT_TRUE(contains(run_phalanx({"--version"}).out, "phalanx " PHALANX_VERSION));
}

TEST(Main, WrongCommandLinesAreOneSentenceAndCode2) {
  struct Case {
    std::vector<std::string> arguments;
    std::string sentence;
  };
  for (const auto& [arguments, sentence] : std::vector<Case>{
           {{"tran", "x"},
            "error: no command 'tran'; did you mean 'train'? (see phalanx --help)\n"},
           {{"--hlep"}, "error: no command '--hlep' (see phalanx --help)\n"},
           {{}, "error: no command given; phalanx --help lists them\n"},
           {{"config", "chek"}, "did you mean 'check'?"},
           {{"config", "sow", "run.toml"}, "did you mean 'show'?"},
           {{"config", "run.toml"}, "A subcommand is required: show, check or reference"},
           {{"run", "--nproc", "2", "--", "true"}, "did you mean '--nproc-per-node'?"}}) {
    const auto wrong = run_phalanx(arguments);
    EXPECT_EQ(wrong.code, 2);
    EXPECT_EQ(wrong.out, "");
    EXPECT_TRUE(contains(wrong.error, sentence)) << wrong.error;
    EXPECT_EQ(std::count(wrong.error.begin(), wrong.error.end(), '\n'), 1) << wrong.error;
  }
}

// The dynamic loader lists what it opens.
TEST(Main, HelpDoesNotLoadLibTorch) {
  for (const auto& arguments : std::vector<std::vector<std::string>>{
           {"--help"}, {"--version"}, {"run", "--help"}, {"config", "reference"}}) {
    const auto traced = run_phalanx(arguments, {.environment = {{"LD_DEBUG", "files"}}});
    EXPECT_TRUE(contains(traced.error, "libphalanx_plain.so"));
    EXPECT_FALSE(contains(traced.error, "libtorch")) << arguments[0];
    EXPECT_FALSE(contains(traced.error, "libc10")) << arguments[0];
  }
}

// What is shown of an error, and of `phalanx run`'s line about its start.
TEST(Main, TheLogLevelNeverHidesErrors) {
  struct Case {
    const char* level;
    bool info, warned;
  };
  for (const auto& [level, info, warned] : std::vector<Case>{{"info", true, false},
                                                             {"INFO", true, false},
                                                             {"Debug", true, false},
                                                             {"", true, false},
                                                             {"Warning", false, false},
                                                             {"error", false, false},
                                                             {"ERROR", false, false},
                                                             {"off", true, true},
                                                             {"critical", true, true},
                                                             {"loud", true, true}}) {
    SCOPED_TRACE(level);
    const ProgramOptions options{.environment = {{"PHALANX_LOG", level}}};
    const auto wrong = run_phalanx({"tran"}, options);
    EXPECT_TRUE(contains(wrong.error, "error: no command 'tran'")) << wrong.error;
    EXPECT_EQ(contains(wrong.error, "warning: PHALANX_LOG is '" + std::string(level) + "'"), warned)
        << wrong.error;
    const auto run = run_phalanx({"run", "--", "true"}, options);
    EXPECT_EQ(contains(run.error, "starting 1 rank"), info) << run.error;
  }
}

TEST(Main, ResultsThatCannotBeWrittenAreAnError) {
  const auto full = run_program({"sh", "-c", PHALANX_BINARY " --help > /dev/full"});
  EXPECT_EQ(full.code, 3);
  EXPECT_TRUE(contains(full.error, "cannot write the results to stdout")) << full.error;
}

// What is opened next would take the number of a stream that the caller closed.
TEST(Main, ClosedStandardStreamsAreNobodyElses) {
  for (const auto& [closed, out] : std::vector<std::pair<std::string, std::string>>{
           {"<&-", "0\n"}, {">&-", ""}, {"2>&-", "0\n"}, {"<&- >&- 2>&-", ""}}) {
    SCOPED_TRACE(closed);
    const auto run = run_program(
        {"sh", "-c", PHALANX_BINARY " run --nproc-per-node 2 -- sh -c 'cat; echo $RANK' " + closed},
        {.deadline = std::chrono::seconds(20)});
    EXPECT_EQ(run.code, 0) << run.error;
    EXPECT_EQ(run.out, out);
  }
}

}  // namespace
}  // namespace phalanx::testing
