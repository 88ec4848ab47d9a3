#include <ATen/Parallel.h>
#include <ATen/ops/full.h>
#include <c10/core/ScalarType.h>

#include <iomanip>
#include <nlohmann/json.hpp>

#include "phalanx/base/cores.h"
#include "phalanx/cli/bench.h"
#include "phalanx/cli/command.h"
#include "phalanx/device/limits.h"
#include "phalanx/optim/optimizer.h"

namespace phalanx::cli {
namespace {

constexpr int64_t kCopyBytes = 64 << 20, kElements = 8 << 20;

struct Line {
  std::string what;
  int threads;
  Rate rate;
  double unit;
  const char* unit_name;
};

Rate adamw_rate(double seconds) {
  const at::Tensor values = at::full({kElements}, 0.1, at::kFloat);
  const at::Tensor gradient = at::full({kElements}, 0.01, at::kFloat);
  const std::vector<OptimizerShard> shards = {{values, gradient, true}};
  auto adamw = make_optimizer({}, shards);
  return measure_rate(kElements, seconds, [&] { adamw->step(shards, 1e-4); });
}

std::vector<Line> measure(int threads, double seconds) {
  at::set_num_threads(threads);
  std::vector<Line> lines;
  for (auto [name, type] : {std::pair{"float32", at::kFloat}, std::pair{"float64", at::kDouble},
                            std::pair{"bfloat16", at::kBFloat16}})
    lines.push_back({text("matrix product ", name), threads, matrix_product_rate(type, seconds),
                     1e9, "GFLOP/s"});
  lines.push_back({"AdamW float32", threads, adamw_rate(seconds), 1e6, "M elements/s"});
  if (threads == 1)
    lines.push_back({"memory copy", threads, copy_rate(kCopyBytes, seconds), 1e9, "GB/s"});
  return lines;
}

void print(const Line& line, bool json) {
  const double best = line.rate.best / line.unit, median = line.rate.median / line.unit;
  if (json) {
    std::cout << nlohmann::json{{"what", line.what},      {"threads", line.threads},
                                {"unit", line.unit_name}, {"best", best},
                                {"median", median},       {"samples", line.rate.samples}}
              << "\n";
    return;
  }
  std::cout << std::left << std::setw(26) << line.what << std::right << std::setw(7) << line.threads
            << std::fixed << std::setprecision(1) << std::setw(12) << median << std::setw(12)
            << best << "  " << line.unit_name << "\n";
}

}  // namespace

int bench_compute(int argc, char** argv) {
  CommandLine app(text("Matrix products of ", matrix_product_size,
                       ", fused AdamW and memory copies, per number of threads."),
                  "phalanx bench compute");
  std::vector<int> threads;
  double seconds = 0.5;
  bool json = false;
  app.add_option("--threads", threads, "thread counts (default: 1, and all cores)");
  app.add_option("--seconds", seconds, "of each measurement")->capture_default_str();
  app.add_flag("--json", json, "one JSON object per measurement");
  if (!app.read(argc, argv)) return 0;
  const int cores = available_cores();
  if (threads.empty()) threads = cores > 1 ? std::vector<int>{1, cores} : std::vector<int>{1};
  for (int count : threads)
    require(count >= 1 && count <= 4 * cores, ExitCode::usage, "--threads ", count,
            ": this machine has ", cores, " cores; give 1 to ", 4 * cores);
  require(seconds > 0, ExitCode::usage, "--seconds ", seconds, ": give a positive time");
  if (!json)
    std::cout << std::left << std::setw(26) << "what" << std::right << std::setw(7) << "threads"
              << std::setw(12) << "median" << std::setw(12) << "best" << "\n";
  for (int count : threads)
    for (const Line& line : measure(count, seconds)) print(line, json);
  return 0;
}

}  // namespace phalanx::cli
