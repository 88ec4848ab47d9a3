#include <cmath>
#include <nlohmann/json.hpp>

#include "phalanx/cli/command.h"
#include "phalanx/cli/join.h"
#include "phalanx/config/load.h"
#include "phalanx/config/write.h"
#include "phalanx/train/evaluation.h"

extern "C" int phalanx_command_eval(int argc, char** argv) {
  using namespace phalanx;
  CLI::App app(
      "The loss over the validation data, as one JSON line on stdout: checkpoint, step, loss (nats "
      "per token), perplexity, tokens, samples. The same for any number of ranks.",
      "phalanx eval");
  std::string path, checkpoint;
  app.add_option("config", path, "the run's TOML file")->required();
  app.add_option("--checkpoint", checkpoint,
                 "folder of a checkpoint (default: the newest of train.run_dir)");
  app.allow_extras();
  app.footer("--section.key=value overrides a key of the file.\n\n" + config_help());
  if (!cli::parse(app, argc, argv)) return 0;

  const Config config = load_config(path, app.remaining()).config;
  const cli::Rank rank = cli::join(config);
  const CheckpointEvaluation found = evaluate_checkpoint(config, rank.world, checkpoint);
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
