#pragma once

#include <memory>
#include <string>

#include "phalanx/checkpoint/source.h"

namespace phalanx {

// A Hugging Face folder: config.json and model.safetensors, or several files with
// model.safetensors.index.json, which then says what lies where; other safetensors files beside it
// are passed over with a notice. A single *.safetensors file of any name will do as well.

/// Whether `items` (of a folder) hold such weights.
bool holds_huggingface(const std::vector<Storage::Item>& items);

/// Describes them. Names are those of huggingface_name() (spec/huggingface.h), the role is
/// "parameter". Error(checkpoint) for an index that names an absent file, or a tensor that its file
/// lacks; for files that are no safetensors, and what they are instead; Error(usage) for quantised
/// weights. `file`: only this one, without an index.
Source read_huggingface(std::shared_ptr<Storage> storage, const std::string& file = "");

}  // namespace phalanx
