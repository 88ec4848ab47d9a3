#include "phalanx/train/progress.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <unistd.h>

#include <limits>

#include "phalanx/base/files.h"
#include "phalanx/train/metrics.h"
#include "tests/support/ranks.h"
#include "tests/train/small_run.h"

namespace phalanx::testing {
namespace {

StepMetrics largest_metrics() {
  StepMetrics metrics;
  metrics.step = 9999999;
  metrics.loss = 1234.5678;
  metrics.grad_norm = 0.000123456;
  metrics.lr = 0.000299999;
  metrics.tokens_per_s = 123456789;
  metrics.peak_memory_bytes = 123456789012;
  return metrics;
}

TEST(Progress, ALineFitsAHundredColumns) {
  EXPECT_LE(progress_line(largest_metrics(), 9999999, 0.99, 359999).size(), 100u);
  StepMetrics metrics;
  metrics.step = 120;
  metrics.loss = 2.1342;
  metrics.grad_norm = 0.81;
  metrics.lr = 3e-4;
  metrics.tokens_per_s = 12345;
  metrics.peak_memory_bytes = 412'000'000;
  EXPECT_EQ(progress_line(metrics, 600, 0.41, 42),
            "step 120/600  loss 2.134  norm 0.81  lr 0.0003  12.3k tok/s  41% GEMM  412 MB  "
            "ETA 0:42");
  EXPECT_EQ(duration_text(3723), "1:02:03");
  EXPECT_EQ(duration_text(std::numeric_limits<double>::infinity()), "?");
}

std::string read_all(int descriptor) {
  std::string bytes;
  char buffer[4096];
  for (ssize_t got; (got = read(descriptor, buffer, sizeof buffer)) > 0;) bytes.append(buffer, got);
  return bytes;
}

TEST(Progress, OutsideOfATerminalOnlyLoggedStepsAsPlainLines) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  {
    Progress progress(ends[1]);
    EXPECT_FALSE(progress.live());
    progress.update("one", false);
    progress.update("two", true);
    progress.say("saved");
    progress.clear();
  }
  close(ends[1]);
  EXPECT_EQ(read_all(ends[0]), "two\nsaved\n");
  close(ends[0]);
}

TEST(Progress, OnATerminalOneLineIsWrittenOver) {
  int terminal = -1, screen = -1;
  winsize size{.ws_row = 20, .ws_col = 12};
  ASSERT_EQ(openpty(&screen, &terminal, nullptr, nullptr, &size), 0);
  fcntl(screen, F_SETFL, O_NONBLOCK);
  {
    Progress progress(terminal);
    EXPECT_TRUE(progress.live());
    progress.update("step 1 of a long line", true);
    progress.update("step 2", false);  // too soon after the last
    progress.say("saved");
    progress.update("step 3", true);
  }
  const std::string erase = "\r\x1b[K";
  EXPECT_EQ(read_all(screen),
            text(erase, "step 1 of a", erase, "saved\r\nstep 1 of a", erase, "step 3\r\n"));
  close(terminal);
  close(screen);
}

TEST(Metrics, AppendsWholeLinesAfterATornOne) {
  const std::string path = temporary_folder() + "/metrics.jsonl";
  replace_file(path, "{\"step\":1}\n{\"st", ExitCode::environment);
  StepMetrics metrics = largest_metrics();
  metrics.loss = std::numeric_limits<double>::quiet_NaN();
  metrics.comm_bytes["dp_shard/gradients"] = 5;
  MetricsFile(path).append(metrics);
  const std::string text = read_file(path, ExitCode::environment);
  EXPECT_EQ(text.find("{\"step\":1}\n{\"st\n{\"step\":9999999,\"tokens\":0,\"loss\":null,"), 0u);
  EXPECT_NE(text.find("\"comm_bytes\":{\"dp_shard/gradients\":5}"), std::string::npos) << text;
  EXPECT_EQ(text.back(), '\n');
}

}  // namespace
}  // namespace phalanx::testing
