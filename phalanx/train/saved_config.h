#pragma once

#include <string>

#include "phalanx/checkpoint/source.h"
#include "phalanx/config/config.h"

namespace phalanx {

/// The config of the run that wrote a checkpoint; of a Hugging Face folder and of what was imported
/// from one a config of defaults with the model that its config.json describes, and no tokenizer,
/// which it does not name. Error(checkpoint) if `source` has neither.
Config saved_config(const Source& source);

/// The text of a config.json for an export of `source`: the one that its weights came with, brought
/// up to date with the run's model, or one made from that.
std::string exported_config(const Source& source);

/// Error(checkpoint) unless the parameters of `source` are exactly those of `model`, by name and
/// shape; a tied head may be there or not.
void check_parameters(const Source& source, const ModelSpec& model);

}  // namespace phalanx
