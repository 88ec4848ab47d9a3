#include <gtest/gtest.h>

#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "phalanx/base/text.h"
#include "tests/support/process.h"
#include "tests/support/ranks.h"

namespace phalanx {
namespace {

using nlohmann::json;
using testing::run_phalanx;

std::vector<json> lines_of(const std::string& out) {
  std::vector<json> lines;
  std::istringstream stream(out);
  for (std::string line; std::getline(stream, line);) lines.push_back(json::parse(line));
  return lines;
}

TEST(BenchCommand, ComputeMeasuresEveryLimit) {
  const auto run =
      run_phalanx({"bench", "compute", "--json", "--threads", "1", "--seconds", "0.01"});
  ASSERT_EQ(run.code, 0) << run.error;
  std::vector<std::string> what;
  for (const json& line : lines_of(run.out)) {
    what.push_back(line["what"]);
    EXPECT_GT(line["median"], 0);
    EXPECT_GE(line["best"], line["median"]);
  }
  EXPECT_EQ(join(what),
            "matrix product float32, matrix product float64, matrix product bfloat16, "
            "AdamW float32, memory copy");
}

TEST(BenchCommand, StepRunsOnTwoRanks) {
  const std::string config = PHALANX_SOURCE_DIR "/configs/tiny.toml";
  const auto run =
      run_phalanx({"run", "--nproc-per-node", "2", "--", "bench", "step", config, "--json",
                   "--warmup", "1", "--steps", "2", "--model.num_hidden_layers=2",
                   "--model.hidden_size=48", "--data.sequence_length=16"});
  ASSERT_EQ(run.code, 0) << run.error;
  const auto lines = lines_of(run.out);
  ASSERT_EQ(lines.size(), 4u);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(lines[i]["step"], i + 1);
  EXPECT_GT(lines[2]["end_s"], lines[1]["end_s"]);
  const json& result = lines.back();
  EXPECT_EQ(result["ranks"], 2);
  EXPECT_EQ(result["steps"], 2);
  EXPECT_EQ(result["strategy"], "optim_grads_params");
  EXPECT_NEAR(result["tokens_per_s"].get<double>() * result["step_ms"].get<double>(), 1e3 * 8 * 16,
              1);
  for (const char* key : {"gemm_share", "pss_bytes", "peak_memory_bytes"})
    EXPECT_GT(result[key], 0) << key;
}

// Gloo meets in a folder for temporary files, whose path may be long.
TEST(BenchCommand, CommMeasuresGlooBesideWhereverTemporaryFilesLie) {
  const std::string folder = testing::temporary_folder();
  const std::string deep = folder + "/" + std::string(200, 'a') + "/" + std::string(200, 'b');
  std::filesystem::create_directories(deep);
  const std::vector<std::string> command = {"bench",  "comm",      "--ranks", "2",
                                            "--json", "--seconds", "0.001"};
  const auto run = run_phalanx(command, {.environment = {{"TMPDIR", deep}}});
  ASSERT_EQ(run.code, 0) << run.error;
  EXPECT_NE(run.out.find("\"gloo\""), std::string::npos) << run.out;
  EXPECT_TRUE(std::filesystem::is_empty(deep));
  const auto none = run_phalanx(command, {.environment = {{"TMPDIR", folder + "/none"}}});
  EXPECT_EQ(none.code, 3) << none.error;
  EXPECT_NE(none.error.find("set TMPDIR to one"), std::string::npos) << none.error;
}

TEST(BenchCommand, CommMeasuresEveryCollectiveForEachNumberOfRanks) {
  const auto run = run_phalanx(
      {"bench", "comm", "--ranks", "2", "2", "--json", "--seconds", "0.001", "--no-gloo"});
  ASSERT_EQ(run.code, 0) << run.error;
  std::map<std::string, int> lines;
  for (const json& line : lines_of(run.out)) {
    EXPECT_GT(line["median_us"], 0) << line;
    EXPECT_EQ(line["ranks"], 2);
    ++lines[line["what"]];
  }
  // Twice: once the latency; each operation in three sizes, with shared and with private buffers.
  EXPECT_EQ(lines, (std::map<std::string, int>{{"all_reduce latency", 2},
                                               {"all_gather", 12},
                                               {"reduce_scatter", 12},
                                               {"all_reduce", 12}}));
  for (const char* ranks : {"1", "257"}) {
    const auto wrong = run_phalanx({"bench", "comm", "--ranks", ranks});
    EXPECT_EQ(wrong.code, 2);
    EXPECT_NE(wrong.error.find("give 2 to 256"), std::string::npos) << wrong.error;
  }
}

TEST(BenchCommand, ACommThatIsEndedTakesItsRanksAlong) {
  const std::string seconds = text(1000, ".", getpid());  // nobody else's
  testing::Program bench({PHALANX_BINARY, "bench", "comm", "--json", "--seconds", seconds});
  ASSERT_TRUE(bench.wait_for("latency"));
  EXPECT_GE(testing::processes_with(seconds).size(), 4u);  // the command, the agent, two ranks
  bench.signal(SIGTERM);
  EXPECT_EQ(bench.finish().code, 143);
  EXPECT_EQ(testing::await_processes(seconds, 0).size(), 0u);
}

TEST(BenchCommand, WhatIsWrongWithAStepsConfigIsSaidOnceForAllRanks) {
  for (const std::string wrong : {"--batch.globl=8", "--batch.global=3", "--warmup=-1"}) {
    SCOPED_TRACE(wrong);
    const auto run = run_phalanx({"run", "--nproc-per-node", "2", "--", "bench", "step",
                                  PHALANX_SOURCE_DIR "/configs/tiny.toml", wrong});
    EXPECT_EQ(run.code, 2);
    EXPECT_NE(run.error.find("error: "), std::string::npos) << run.error;
    EXPECT_EQ(run.error.find("[rank 1]"), std::string::npos) << run.error;
    EXPECT_EQ(run.error.find("failed first"), std::string::npos) << run.error;
  }
  // A mistake does not hide a rule that this number of ranks breaks.
  const auto both = run_phalanx({"run", "--nproc-per-node", "3", "--", "bench", "step",
                                 PHALANX_SOURCE_DIR "/configs/tiny.toml", "--train.stepz=1"});
  EXPECT_EQ(both.code, 2);
  for (const char* said : {"train.stepz", "batch.global = 8 is no multiple of 3"})
    EXPECT_NE(both.error.find(said), std::string::npos) << both.error;
}

TEST(BenchCommand, RefusesWrongArguments) {
  const auto part = run_phalanx({"bench", "stepp"});
  EXPECT_EQ(part.code, 2);
  EXPECT_NE(part.error.find("no part of bench 'stepp'; did you mean 'step'"), std::string::npos)
      << part.error;
  EXPECT_EQ(run_phalanx({"bench"}).code, 2);
  EXPECT_EQ(run_phalanx({"bench", "compute", "--threads", "0"}).code, 2);
  EXPECT_EQ(run_phalanx({"bench", "step", "no.toml"}).code, 2);
}

}  // namespace
}  // namespace phalanx
