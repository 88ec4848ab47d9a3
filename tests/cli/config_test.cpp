#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/support/process.h"
#include "tests/support/ranks.h"
#include "tests/support/sentence.h"

namespace phalanx::testing {
namespace {

const std::string quickstart = PHALANX_SOURCE_DIR "/configs/quickstart.toml";

TEST(ConfigCommand, ShowPrintsTomlThatItReads) {
  const auto shown = run_phalanx({"config", "show", quickstart, "--train.steps=7"});
  EXPECT_EQ(shown.code, 0) << shown.error;
  EXPECT_EQ(shown.error, "");
  EXPECT_TRUE(contains(shown.out, "# command line\n")) << shown.out;
  EXPECT_TRUE(contains(shown.out, "quickstart.toml:")) << shown.out;
  const std::string path = temporary_folder() + "/again.toml";
  std::ofstream(path) << shown.out;
  const auto again = run_phalanx({"config", "show", path});
  EXPECT_EQ(again.code, 0) << again.error;
  auto values = [](const std::string& text) {
    std::istringstream lines(text);
    std::string line, all;
    while (std::getline(lines, line)) all += line.substr(0, line.find("  #")) + "\n";
    return all;
  };
  EXPECT_TRUE(contains(values(again.out), "steps = 7"));
  // Trailing blanks of a value's column differ with the longest line only.
  EXPECT_EQ(values(again.out), values(shown.out));
}

TEST(ConfigCommand, CheckSaysWhatTheRunIs) {
  const auto good = run_phalanx(
      {"config", "check", quickstart, "--world-size", "2", "--batch.global=8", "--batch.micro=2"});
  EXPECT_EQ(good.code, 0) << good.error;
  EXPECT_TRUE(contains(good.out, "quickstart.toml can run on 2 ranks")) << good.out;
  EXPECT_TRUE(contains(good.out, "microbatches on every rank: 2 of 2")) << good.out;
}

TEST(ConfigCommand, WrongConfigsEndWithCode2AndAllSentences) {
  struct Case {
    std::vector<std::string> arguments, fragments;
  };
  const std::vector<Case> cases = {
      {{"check", quickstart, "--world-size=2", "--parallel.tp=2", "--batch.micro=3"},
       {"parallel.tp = 2 is not available in this version", "batch.global = "}},
      {{"check", quickstart, "--world-size=3", "--batch.global=8", "--train.stepz=1"},
       {"did you mean 'train.steps'?", "batch.global = 8 is no multiple of 3"}},
      {{"check", quickstart, "--batch.globl=3", "--train.stepz=1"},
       {"did you mean 'batch.global'?", "did you mean 'train.steps'?"}},
      {{"show", quickstart, "extra"}, {"'extra' is no --section.key=value"}},
      {{"show", "/no/such.toml"}, {"/no/such.toml: No such file or directory; give the path"}},
      {{"check", quickstart, "--world-size=0"}, {"--world-size"}},
      {{"show"}, {"config is required"}},
      {{}, {"phalanx config --help"}},
  };
  for (const Case& wrong : cases) {
    std::vector<std::string> arguments = {"config"};
    arguments.insert(arguments.end(), wrong.arguments.begin(), wrong.arguments.end());
    const auto ended = run_phalanx(arguments);
    EXPECT_EQ(ended.code, 2);
    EXPECT_EQ(ended.out, "");
    for (const auto& fragment : wrong.fragments)
      EXPECT_TRUE(contains(ended.error, fragment)) << ended.error;
  }
}

TEST(ConfigCommand, ReferenceIsThePageInDocs) {
  std::ifstream file(PHALANX_SOURCE_DIR "/docs/config.md");
  std::stringstream page;
  page << file.rdbuf();
  EXPECT_EQ(run_phalanx({"config", "reference"}).out, page.str());
  EXPECT_TRUE(contains(run_phalanx({"config", "--help"}).out, "--parallel.strategy=")) << "no keys";
}

}  // namespace
}  // namespace phalanx::testing
