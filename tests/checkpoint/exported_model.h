#pragma once

// A small GPT-2, its checkpoint, and what a folder of weights holds.

#include <ATen/ATen.h>

#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "phalanx/base/files.h"
#include "phalanx/checkpoint/checkpoint.h"
#include "phalanx/checkpoint/source.h"
#include "phalanx/config/write.h"
#include "phalanx/models/model.h"
#include "phalanx/nn/init.h"
#include "phalanx/spec/huggingface.h"
#include "tests/checkpoint/weight_files.h"
#include "tests/support/ranks.h"

namespace phalanx::testing {

inline ModelSpec small_model_spec(bool tied = true, int64_t heads = 2) {
  ModelSpec spec{.hidden_size = 24, .num_hidden_layers = 2, .num_attention_heads = heads};
  spec.num_key_value_heads = heads;
  spec.intermediate_size = 96;
  spec.vocab_size = 61;
  spec.max_position_embeddings = 16;
  spec.tie_word_embeddings = tied;
  return spec;
}

inline std::unique_ptr<Model> model_of(const ModelSpec& spec, at::ScalarType dtype = at::kDouble) {
  auto model = make_model(spec, dtype);
  allocate_and_initialize(parameters_of(*model), 3);
  for (const Parameter& parameter : parameters_of(*model))  // biases and norms too
    parameter->tensor.detach().mul_(7).add_(0.01);
  return model;
}

inline std::vector<StateEntry> entries_of(Model& model) {
  std::vector<StateEntry> entries;
  for (const Parameter& parameter : parameters_of(model))
    for (auto& entry : whole_entries(parameter->spec, parameter->tensor.detach(), "parameter"))
      entries.push_back(std::move(entry));
  return entries;
}

inline at::Tensor logits_of(Model& model, const at::Tensor& tokens) {
  const Context context{.training = false};
  Tensors hidden = model.embed(tokens, context);
  for (int i = 0; i < model.block_count(); ++i) hidden = model.block(i).forward(hidden, context);
  return model.logits(hidden, context).detach();
}

// A checkpoint of one rank in folder/step-5.
inline std::string saved(const std::string& folder, Model& model,
                         const std::string& config_json = "") {
  const auto alone = single_communicator("world");
  Config config;
  config.model.spec = model.spec();
  RunState run{.step = 5, .config = to_toml(config)};
  if (!config_json.empty()) run.values[huggingface_config_key] = config_json;
  return save_checkpoint(*alone, folder, run, entries_of(model), 0);
}

// Changes the last byte of a file.
inline void flip_last_byte(const std::string& file) {
  std::string bytes = read_file(file, ExitCode::checkpoint);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  write_text(file, bytes);
}

// Every tensor of a folder: name, type, shape and bytes.
inline std::map<std::string, std::string> tensors_of(const std::string& path) {
  const Source source = open_source(path);
  std::map<std::string, std::string> found;
  for (const auto& entry : source.manifest.entries) {
    const at::Tensor values = at::empty(entry.shape, scalar_type(entry.dtype));
    read_box(source, entry, whole_box(entry.shape), values);
    std::string& bytes = found[entry.name];
    bytes = text(name(entry.dtype), " ", join(entry.shape), " ");
    bytes.append(static_cast<const char*>(values.const_data_ptr()), values.nbytes());
  }
  return found;
}

inline nlohmann::json config_of(const std::string& folder) {
  return nlohmann::json::parse(read_file(folder + "/config.json", ExitCode::checkpoint));
}

}  // namespace phalanx::testing
