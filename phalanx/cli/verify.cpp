#include <sys/mman.h>

#include <cstdlib>

#include "phalanx/cli/command.h"
#include "phalanx/cli/guard.h"
#include "phalanx/cli/join.h"
#include "phalanx/config/check.h"
#include "phalanx/config/load.h"
#include "phalanx/config/write.h"
#include "phalanx/launch/launch.h"
#include "phalanx/train/comparison.h"
#include "phalanx/train/same_config.h"

namespace phalanx::cli {
namespace {

struct VerifyOptions {
  Config config;
  int ranks = 0;  ///< to start; 0: a launcher's, or as the config says
  int64_t steps = 3;
  double planted_error = 0;
  bool json = false;
};

// The config of one rank that has the same global batch in microbatches of the same size.
Config reference_config(const Config& layout, int ranks) {
  Config config = resolve(layout, ranks);
  config.parallel.degree = {};
  return config;
}

// In every rank; the verdict is rank 0's, which shows it, since the first failing rank ends the
// others. Rank 0 starts the reference before it has threads or peers.
bool verify_rank(const VerifyOptions& options) {
  const WorldInfo info = world_from_environment();
  Reference reference(reference_config(options.config, info.size),
                      verification_trials(options.config, options.steps));
  if (info.rank == 0) reference.start();
  const Rank rank = join(options.config);
  const auto everyone = group_of_all_ranks(*rank.world);
  require_same_config(*everyone, options.config);
  wait_together(*everyone, reference, rank.world->options().deadline);
  Mesh mesh(rank.world, resolve(options.config, info.size).parallel.degree);
  const Comparison comparison =
      compare_with_one_rank(options.config, mesh, reference, options.planted_error);
  if (info.rank == 0) {
    if (options.json)
      std::cout << comparison_json(comparison, options.config, info.size) << std::endl;
    else
      std::cout << comparison_table(comparison) << std::flush;
  }
  return info.rank != 0 || comparison.equal();
}

// An int that this process and those that it forks share.
class SharedFlag {
 public:
  SharedFlag() {
    void* memory =
        mmap(nullptr, sizeof(int), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    require(memory != MAP_FAILED, ExitCode::environment, "no shared memory for the result");
    value_ = static_cast<int*>(memory);
  }
  ~SharedFlag() { munmap(value_, sizeof(int)); }
  SharedFlag(const SharedFlag&) = delete;
  int& value() { return *value_; }

 private:
  int* value_;
};

// Not under a launcher: starts the ranks itself.
int verify_here(const VerifyOptions& options) {
  Degrees degree = options.config.parallel.degree;
  if (degree.dp_shard == 0) degree.dp_shard = 2;
  int64_t product = 1;
  for (int size : {degree.pp, degree.dp_replicate, degree.dp_shard, degree.cp, degree.tp})
    product = std::min<int64_t>(product * size, most_ranks + 1);
  require(options.ranks > 0 || product <= most_ranks, ExitCode::usage,
          "the degrees of [parallel] ask for more than ", most_ranks,
          " ranks, which is more than one machine is to start; lower them");
  const int ranks = options.ranks > 0 ? options.ranks : static_cast<int>(product);
  resolve(options.config, ranks);
  SharedFlag equal;
  LaunchOptions start;
  start.ranks = ranks;
  start.own_command = true;
  start.body = [&] {
    return guarded([&] {
      const bool found = verify_rank(options);
      if (world_from_environment().rank == 0) equal.value() = found;
      return 0;
    });
  };
  const int code = launch(std::move(start));
  if (code != 0) return code;
  return equal.value() ? 0 : static_cast<int>(ExitCode::check_failed);
}

bool under_launcher() { return std::getenv("RANK") || world_from_environment().size > 1; }

void refuse_ranks(const VerifyOptions& options) {
  require(options.ranks == 0, ExitCode::usage, "--ranks = ", options.ranks,
          ": a launcher starts the ranks; leave it out");
}

// Nothing if only --help was asked for. `ranks`: that will run it; 0: as a launcher or --ranks
// says.
std::optional<VerifyOptions> verify_arguments(int argc, char** argv, int ranks = 0) {
  CommandLine app(
      "Compares the config's layout with one rank that knows no engine: loss, gradient norm, every "
      "gradient, and the parameters after a few steps of SGD and of AdamW. Starts its own ranks "
      "unless a launcher did. Exit code 1 if anything differs. Weights are initial ones; nothing "
      "is "
      "saved.",
      "phalanx verify");
  std::string path, dtype = "float64";
  VerifyOptions options;
  app.add_option("config", path, "the run's TOML file")->required();
  app.add_option("--dtype", dtype,
                 "float64 compares to 1e-9; float32 to 1e-5, with SGD only (AdamW amplifies noise)")
      ->check(CLI::IsMember({"float64", "float32"}))
      ->capture_default_str();
  app.add_option("--steps", options.steps, "optimizer steps of each kind")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--ranks", options.ranks,
                 "ranks to start (default: the product of the degrees; 2 if parallel.dp_shard is "
                 "left out)")
      ->check(CLI::Range(1, most_ranks));
  app.add_flag("--json", options.json, "one JSON line instead of the table");
  app.add_option("--plant-error", options.planted_error)->group("");
  app.allow_extras();
  app.footer("--section.key=value overrides a key of the file.\n\n" + config_help());
  if (!app.read(argc, argv)) return std::nullopt;
  if (ranks == 0) ranks = under_launcher() ? world_from_environment().size : options.ranks;
  options.config = load_config(path, app.remaining(), ranks).config;
  Layout& layout = options.config.parallel;
  layout.compute = layout.master = layout.reduce_dtype =
      dtype == "float64" ? Dtype::float64 : Dtype::float32;
  return options;
}

}  // namespace
}  // namespace phalanx::cli

extern "C" bool phalanx_check_verify(int argc, char** argv, int ranks) {
  const auto options = phalanx::cli::verify_arguments(argc, argv, ranks);
  if (options) phalanx::cli::refuse_ranks(*options);
  return options && phalanx::cli::check_config(options->config, ranks);
}

extern "C" int phalanx_command_verify(int argc, char** argv) {
  using namespace phalanx;
  const auto options = cli::verify_arguments(argc, argv);
  if (!options) return 0;
  if (!cli::under_launcher()) return cli::verify_here(*options);
  cli::refuse_ranks(*options);
  return cli::verify_rank(*options) ? 0 : static_cast<int>(ExitCode::check_failed);
}
