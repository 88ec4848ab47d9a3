#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "phalanx/base/text.h"
#include "tests/support/process.h"

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
