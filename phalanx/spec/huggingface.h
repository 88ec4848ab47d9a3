#pragma once

#include <string>

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

}  // namespace phalanx
