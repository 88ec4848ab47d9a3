#include <cmath>
#include <nlohmann/json.hpp>

#include "phalanx/cli/command.h"
#include "phalanx/cli/join.h"
#include "phalanx/config/load.h"
#include "phalanx/config/write.h"
#include "phalanx/train/evaluation.h"

namespace phalanx::cli {
namespace {

struct EvalArguments {
  Config config;
  std::string checkpoint;
};

// Nothing if only --help was asked for. `ranks`: that will run it; 0: as a launcher says.
std::optional<EvalArguments> eval_arguments(int argc, char** argv, int ranks = 0) {
  CommandLine app(
      "The loss over the validation data, as one JSON line on stdout: checkpoint, step, loss (nats "
      "per token), perplexity, tokens, samples. The same for any number of ranks.",
      "phalanx eval");
  std::string path;
  EvalArguments arguments;
  app.add_option("config", path, "the run's TOML file")->required();
  app.add_option(
      "--checkpoint", arguments.checkpoint,
      "a checkpoint, a Hugging Face folder or other weights (default: the newest checkpoint "
      "of the run)");
  app.allow_extras();
  app.footer("--section.key=value overrides a key of the file.\n\n" + config_help());
  if (!app.read(argc, argv)) return std::nullopt;
  if (ranks == 0) ranks = world_from_environment().size;
  arguments.config = load_config(path, app.remaining(), ranks, ConfigUse::evaluation).config;
  return arguments;
}

}  // namespace
}  // namespace phalanx::cli

extern "C" bool phalanx_check_eval(int argc, char** argv, int ranks) {
  const auto arguments = phalanx::cli::eval_arguments(argc, argv, ranks);
  return arguments &&
         phalanx::cli::check_config(arguments->config, ranks, phalanx::ConfigUse::evaluation);
}

extern "C" int phalanx_command_eval(int argc, char** argv) {
  using namespace phalanx;
  const auto arguments = cli::eval_arguments(argc, argv);
  if (!arguments) return 0;
  const cli::Rank rank = cli::join(arguments->config, ConfigUse::evaluation);
  const CheckpointEvaluation found =
      evaluate_checkpoint(arguments->config, rank.world, arguments->checkpoint);
  if (rank.info.rank == 0)
    std::cout << nlohmann::ordered_json{{"checkpoint", found.path},
                                        {"step", found.step},
                                        {"loss", found.result.loss},
                                        {"perplexity", std::exp(found.result.loss)},
                                        {"tokens", found.result.tokens},
                                        {"samples", found.result.samples}}
                     .dump()
              << std::endl;
  return 0;
}
