#include "phalanx/base/text.h"
#include "phalanx/cli/command.h"
#include "phalanx/config/check.h"
#include "phalanx/config/write.h"
#include "phalanx/spec/model.h"

namespace phalanx::cli {
namespace {

// What a run on `world_size` ranks will be. Throws with everything that forbids it.
std::string summary(const std::string& path, const Config& loaded, int world_size) {
  const Config config = resolve(loaded, world_size);
  const Layout& layout = config.parallel;
  const int64_t tokens = config.batch.global * config.data.sequence_length;
  return text(path, " can run on ", world_size, world_size == 1 ? " rank\n" : " ranks\n",
              "  model     ", config.model.spec.kind, ", ", parameter_count(config.model.spec),
              " parameters\n  parallel  strategy ", name(layout.strategy), ", dp_replicate ",
              layout.degree.dp_replicate, " x dp_shard ", layout.degree.dp_shard, "\n  step      ",
              config.batch.global, " sequences of ", config.data.sequence_length, " = ", tokens,
              " tokens; microbatches on every rank: ", accumulation(config), " of ",
              config.batch.micro, "\n");
}

}  // namespace
}  // namespace phalanx::cli

extern "C" int phalanx_command_config(int argc, char** argv) {
  using namespace phalanx;
  cli::CommandLine app("Shows and checks configs.", "phalanx config");
  app.require_subcommand(1);
  app.footer("\n" + config_help());
  std::string path;
  int world_size = 1;
  CLI::App* show_command = app.add_subcommand("show", "every value with its origin, as TOML");
  CLI::App* check_command = app.add_subcommand("check", "all that is wrong; exit code 2 if any");
  app.add_subcommand("reference", "the page docs/config.md");
  for (CLI::App* command : {show_command, check_command}) {
    command->add_option("config", path, "the run's TOML file")->required();
    command->allow_extras();
    command->footer("--section.key=value overrides; `phalanx config --help` lists the keys.");
  }
  check_command->add_option("--world-size", world_size, "ranks that it shall run on")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20));
  if (!app.read(argc, argv)) return 0;

  if (show_command->parsed())
    std::cout << show(load_config(path, show_command->remaining()));
  else if (check_command->parsed())
    std::cout << cli::summary(
        path, load_config(path, check_command->remaining(), world_size).config, world_size);
  else
    std::cout << config_reference();
  return 0;
}
