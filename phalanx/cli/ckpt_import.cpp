#include "phalanx/checkpoint/export.h"
#include "phalanx/cli/ckpt.h"
#include "phalanx/cli/command.h"
#include "phalanx/config/load.h"
#include "phalanx/config/write.h"
#include "phalanx/spec/huggingface.h"
#include "phalanx/train/saved_config.h"

namespace phalanx::cli {
namespace {

ModelSpec without_dropout(ModelSpec spec) {
  spec.attn_pdrop = spec.resid_pdrop = spec.embd_pdrop = 0;
  return spec;
}

// What the new checkpoint says of its run: the source's own state, with the config given. A
// config.json, which is part of that state, must fit its tensors.
RunState run_of(const Source& source, const std::string& config_path) {
  RunState run = source.manifest.run;
  run.versions["phalanx"] = PHALANX_VERSION;
  if (!config_path.empty()) {
    Config config = load_config(config_path).config;
    check_parameters(source, config.model.spec);
    const auto json = run.values.find(huggingface_config_key);
    if (json != run.values.end())
      require(without_dropout(parse_huggingface_config(std::get<std::string>(json->second),
                                                       source.path + "/config.json")) ==
                  without_dropout(config.model.spec),
              ExitCode::checkpoint, config_path, " and the config.json of ", source.path,
              " describe different models; set model.path = \"", source.path, "\" in ",
              config_path);
    config.model.path.clear();
    run.config = to_toml(config);
  } else if (run.config.empty() && run.values.contains(huggingface_config_key)) {
    check_parameters(source, saved_config(source).model.spec);
  }
  return run;
}

}  // namespace

int ckpt_import(int argc, char** argv) {
  CommandLine app(
      "Makes a checkpoint of weights in any form that can be read: a Hugging Face folder, another "
      "checkpoint (its ranks' parts are put together). `train.init_from` needs no import.",
      "phalanx ckpt import");
  std::string from, to, config;
  app.add_option("source", from, "the folder or file to read")->required();
  app.add_option("destination", to, "a folder of checkpoints; step-N appears in it")->required();
  app.add_option("--config", config,
                 "the TOML file of a run whose model this is (a config.json says it too)");
  if (!app.read(argc, argv)) return 0;
  const Source source = open_source(from);
  const std::string path = import_checkpoint(source, to, run_of(source, config));
  std::cout << path << ": " << source.manifest.entries.size() << " tensors from " << source.path
            << " (" << source.format << ")\n";
  return 0;
}

}  // namespace phalanx::cli
