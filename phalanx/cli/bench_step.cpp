#include <algorithm>
#include <chrono>
#include <iomanip>
#include <nlohmann/json.hpp>
#include <optional>

#include "phalanx/base/log.h"
#include "phalanx/cli/bench.h"
#include "phalanx/cli/command.h"
#include "phalanx/cli/join.h"
#include "phalanx/comm/mesh.h"
#include "phalanx/comm/scalar.h"
#include "phalanx/config/check.h"
#include "phalanx/config/load.h"
#include "phalanx/data/batches.h"
#include "phalanx/device/limits.h"
#include "phalanx/device/memory.h"
#include "phalanx/models/model.h"
#include "phalanx/parallel/parallelize.h"
#include "phalanx/parallel/update.h"
#include "phalanx/train/evaluation.h"

namespace phalanx::cli {
namespace {

/// The steps of a run and nothing else: no loss over ranks, no logs, no checkpoints.
class Stepper {
 public:
  Stepper(const Config& config, std::shared_ptr<World> world)
      : config_(config),
        mesh_(world, config.parallel.degree),
        device_(cpu_device()),
        batches_(open_training_data(config),
                 {.global = config.batch.global,
                  .micro = config.batch.micro,
                  .ranks = data_parallel_group(mesh_).size(),
                  .rank = data_parallel_group(mesh_).rank()},
                 config.data.seed),
        model_(make_model(config.model.spec, scalar_type(config.parallel.compute)), config.parallel,
               {.seed = static_cast<uint64_t>(config.train.seed),
                .recompute = config.recompute.mode == RecomputeMode::full},
               mesh_, *device_),
        update_(config.optimizer, config.lr, model_.engine()) {}

  /// One optimizer step; this rank's part of the loss, in nats per token.
  double step() {
    const double tokens = static_cast<double>(batches_.counted_tokens(consumed_));
    double loss = 0;
    const int64_t count = batches_.microbatches();
    for (int64_t i = 0; i < count; ++i)
      loss += model_.train(batches_.microbatch(consumed_, i), 1 / tokens, step_, i + 1 == count);
    DataParallel& engine = model_.engine();
    engine.wait_gradients();
    update_.step(config_.optimizer.clip_norm > 0 ? engine.gradient_norm() : 0);
    engine.finish_step();
    ++step_;
    consumed_ = (consumed_ + config_.batch.global) % data_samples();
    return loss / tokens;
  }

  int64_t tokens_per_step() const { return config_.batch.global * config_.data.sequence_length; }
  Communicator& group() { return data_parallel_group(mesh_); }
  void settle() { model_.engine().wait_gradients(); }

 private:
  int64_t data_samples() const {
    return batches_.data().samples() / config_.batch.global * config_.batch.global;
  }

  Config config_;
  Mesh mesh_;
  std::unique_ptr<Device> device_;
  Batches batches_;
  ParallelModel model_;
  ShardedUpdate update_;
  int64_t step_ = 0, consumed_ = 0;
};

double monotonic_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

struct Result {
  std::vector<double> seconds;
  double tokens_per_s, gemm_share, sum_pss, largest_memory;
};

// Sums and maxima over ranks of what each measured.
double over_ranks(Communicator& group, double value, Op op) {
  return all_reduce(group, value, op, {"result", "bench"});
}

void print(const Config& config, const Rank& rank, const Result& result, bool json) {
  const double step_ms = 1e3 * median(result.seconds);
  if (json) {
    std::cout << nlohmann::json{{"ranks", rank.info.size},
                                {"threads", rank.threads},
                                {"strategy", name(config.parallel.strategy)},
                                {"steps", result.seconds.size()},
                                {"tokens_per_s", result.tokens_per_s},
                                {"step_ms", step_ms},
                                {"gemm_share", result.gemm_share},
                                {"pss_bytes", result.sum_pss},
                                {"peak_memory_bytes", result.largest_memory}}
              << std::endl;
    return;
  }
  std::cout << std::fixed << std::setprecision(1)  //
            << "ranks x threads    " << rank.info.size << " x " << rank.threads << ", strategy "
            << name(config.parallel.strategy) << "\n"
            << "tokens/s           " << result.tokens_per_s << "\n"
            << "step               " << step_ms << " ms (median of " << result.seconds.size()
            << ")\n"
            << "of the GEMM limit  " << 100 * result.gemm_share << " %\n"
            << "memory             " << result.largest_memory / 1e6
            << " MB peak of tensors and segments on the largest rank; " << result.sum_pss / 1e6
            << " MB proportional set size, all ranks\n";
}

struct StepOptions {
  Config config;  // not resolved
  int64_t warmup = 3, steps = 10;
  bool json = false;
};

// Nothing if --help was asked for. `ranks`: that will run it; 0: as a launcher says.
std::optional<StepOptions> step_arguments(int argc, char** argv, int ranks = 0) {
  CommandLine app(
      "Training steps of a config without logs, evaluation and checkpoints, on one rank or on all "
      "that a launcher started.",
      "phalanx bench step");
  std::string path;
  StepOptions options;
  app.add_option("config", path, "the run's TOML file")->required();
  app.add_option("--warmup", options.warmup, "steps before the measured ones")
      ->capture_default_str();
  app.add_option("--steps", options.steps, "measured steps; 0: until stopped")
      ->capture_default_str();
  app.add_flag("--json", options.json, "one JSON object per step, and one with the result");
  app.allow_extras();
  app.footer("--section.key=value overrides a key of the file.");
  if (!app.read(argc, argv)) return std::nullopt;
  require(options.warmup >= 0 && options.steps >= 0, ExitCode::usage, "--warmup ", options.warmup,
          " --steps ", options.steps, ": neither can be negative");
  if (ranks == 0) ranks = world_from_environment().size;
  options.config = load_config(path, app.remaining(), ranks).config;
  return options;
}

}  // namespace

bool check_bench_step(int argc, char** argv, int ranks) {
  const auto options = step_arguments(argc, argv, ranks);
  return options && check_config(options->config, ranks);
}

int bench_step(int argc, char** argv) {
  const auto options = step_arguments(argc, argv);
  if (!options) return 0;
  const auto [given, warmup, steps, json] = *options;
  const Rank rank = join(given);
  const Config config = resolve(given, rank.info.size);
  Stepper stepper(config, rank.world);
  const bool shown = rank.info.rank == 0;
  Result result{};
  for (int64_t i = 0; steps == 0 || i < warmup + steps; ++i) {
    if (i == warmup) reset_peak_memory();
    const double start = monotonic_seconds();
    const double loss = stepper.step();
    const double end = monotonic_seconds();
    if (i >= warmup) result.seconds.push_back(end - start);
    if (shown && json)
      std::cout << nlohmann::json{{"step", i + 1}, {"end_s", end}, {"loss_of_rank", loss}}
                << std::endl;
  }
  stepper.settle();
  Communicator& group = stepper.group();
  result.sum_pss = over_ranks(group, static_cast<double>(proportional_set_bytes()), Op::sum);
  result.largest_memory = over_ranks(group, static_cast<double>(rank_memory().peak), Op::max);
  result.tokens_per_s = stepper.tokens_per_step() / median(result.seconds);
  const double limit =
      over_ranks(group, matrix_product_rate(scalar_type(config.parallel.compute)).best, Op::sum);
  const double flops = flops_per_token(config.model.spec, config.data.sequence_length);
  result.gemm_share = result.tokens_per_s * flops / limit;
  if (shown) print(config, rank, result, json);
  return 0;
}

}  // namespace phalanx::cli
