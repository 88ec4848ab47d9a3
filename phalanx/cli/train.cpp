#include <csignal>

#include "phalanx/cli/command.h"
#include "phalanx/cli/join.h"
#include "phalanx/config/load.h"
#include "phalanx/config/write.h"
#include "phalanx/launch/signals.h"
#include "phalanx/train/run.h"

namespace phalanx::cli {
namespace {

// Nothing if only --help was asked for. `ranks`: that will run it; 0: as a launcher says.
std::optional<Config> train_arguments(int argc, char** argv, int ranks = 0) {
  CommandLine app(
      "Trains a model as the config says: on one rank, or on all that a launcher (phalanx run, "
      "torchrun, mpirun, srun) started. Called again it goes on where it was. SIGTERM and Ctrl-C "
      "end it after a save, with exit code 75; SIGUSR1 saves and goes on.",
      "phalanx train");
  std::string path;
  app.add_option("config", path, "the run's TOML file")->required();
  app.allow_extras();
  app.footer("--section.key=value overrides a key of the file.\n\n" + config_help());
  if (!app.read(argc, argv)) return std::nullopt;
  if (ranks == 0) ranks = world_from_environment().size;
  return load_config(path, app.remaining(), ranks).config;
}

}  // namespace
}  // namespace phalanx::cli

extern "C" bool phalanx_check_train(int argc, char** argv, int ranks) {
  return phalanx::cli::check_config(phalanx::cli::train_arguments(argc, argv, ranks), ranks);
}

extern "C" int phalanx_command_train(int argc, char** argv) {
  using namespace phalanx;
  const auto config = cli::train_arguments(argc, argv);
  if (!config) return 0;
  install_signals();
  const cli::Rank rank = cli::join(*config);
  Trainer trainer(*config, rank.world);
  const Ending ending = run_training(trainer, {.stop_requested = stop_requested,
                                               .saves_requested = saves_requested,
                                               .threads = rank.threads});
  if (ending == Ending::interrupted) return static_cast<int>(ExitCode::interrupted);
  // A peer may have had the signal.
  if (ending == Ending::not_saved) return 128 + (stop_requested() ? stop_requested() : SIGTERM);
  return 0;
}
