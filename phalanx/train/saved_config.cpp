#include "phalanx/train/saved_config.h"

#include <map>

#include "phalanx/base/error.h"
#include "phalanx/checkpoint/box.h"
#include "phalanx/config/load.h"
#include "phalanx/spec/huggingface.h"

namespace phalanx {
namespace {

std::string config_json_of(const Source& source) {
  const auto found = source.manifest.run.values.find(huggingface_config_key);
  if (found == source.manifest.run.values.end()) return "";
  const auto* json = std::get_if<std::string>(&found->second);
  return json ? *json : "";
}

}  // namespace

Config saved_config(const Source& source) {
  const std::string& toml = source.manifest.run.config;
  if (!toml.empty()) return parse_config(toml, source.path + " (config)").config;
  const std::string json = config_json_of(source);
  require(!json.empty(), ExitCode::checkpoint, source.path,
          " does not say what model its weights belong to: it has no config; `phalanx ckpt import` "
          "with --config RUN.toml gives it one");
  Config config;
  config.data.tokenizer.clear();
  config.model.spec = parse_huggingface_config(json, source.path + "/config.json");
  return config;
}

std::string exported_config(const Source& source) {
  const std::string json = config_json_of(source);
  if (source.manifest.run.config.empty() && !json.empty()) return json;  // any architecture
  const ModelSpec model = saved_config(source).model.spec;
  return json.empty() ? huggingface_config(model) : update_huggingface_config(json, model);
}

void check_parameters(const Source& source, const ModelSpec& model) {
  std::map<std::string, std::vector<int64_t>> wanted;
  for (const BlockSpec& block : blocks(model))
    for (const ParameterSpec& parameter : block.parameters)
      for (const Piece& piece : parameter.pieces) wanted[piece.name] = piece.global_shape;
  auto allowed = wanted;
  for (const ParameterSpec& parameter : tied_parameters(model))
    for (const Piece& piece : parameter.pieces) allowed[piece.name] = piece.global_shape;
  std::vector<std::string> wrong;
  for (const auto& entry : source.manifest.entries) {
    if (entry.role != "parameter") continue;
    const auto place = allowed.find(entry.name);
    if (place == allowed.end())
      wrong.push_back(text("the model has no ", entry.name));
    else if (place->second != entry.shape)
      wrong.push_back(text(entry.name, " is ", shape_string(entry.shape), ", the model's ",
                           shape_string(place->second)));
    wanted.erase(entry.name);
  }
  for (const auto& [name, shape] : wanted) wrong.push_back("it lacks " + name);
  require(wrong.empty(), ExitCode::checkpoint, source.path,
          " does not fit the model of the config: ", join(wrong, "; "));
}

}  // namespace phalanx
