#pragma once

#include <string>

#include "phalanx/spec/dtype.h"
#include "phalanx/spec/model.h"

namespace phalanx {

/// The model that a Hugging Face config.json describes. `where` names the text in errors. What this
/// version cannot do (another architecture, activation, cross-attention, quantised weights ...) is
/// refused by name, Error(usage), because it would change the values that the model computes.
ModelSpec parse_huggingface_config(const std::string& json, const std::string& where);

/// The same from `folder`/config.json. Throws Error(usage) if it cannot be read.
ModelSpec read_huggingface_config(const std::string& folder);

/// config.json as `transformers` reads it, with a newline at the end.
std::string huggingface_config(const ModelSpec& model);

/// `json`, the text of a config.json, made to describe `model`: what this program does not know
/// stays, and the text stays as it is if nothing differs.
std::string update_huggingface_config(const std::string& json, const ModelSpec& model);

/// The same for the type of the weights.
std::string update_huggingface_config(const std::string& json, Dtype dtype);

/// Refuses a config.json whose weights are quantised, by the name of the method: Error(usage).
void refuse_quantized(const std::string& json, const std::string& where);

/// "model_type" of a config.json; empty if it names none.
std::string huggingface_model_type(const std::string& json, const std::string& where);

/// What `transformers` calls a tensor today that a file calls `name`: files of the first GPT-2 lack
/// the prefix "transformer.". Empty for the buffers in old files that are no weights (the causal
/// mask attn.bias, attn.masked_bias). `model_type` as in config.json; names of models unknown here
/// stay as they are.
std::string huggingface_name(const std::string& model_type, const std::string& name);

}  // namespace phalanx
