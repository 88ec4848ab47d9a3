#pragma once

#include <memory>
#include <optional>
#include <string>

#include "phalanx/checkpoint/source.h"

namespace phalanx {

// Folders of PyTorch's torch.distributed.checkpoint: `.metadata`, a pickle of dataclasses that says
// which chunks tensors have and where, and files of torch.save archives, one for each chunk.

/// A folder as a source. Runs nothing of the pickle. Names as torch_names.h says; `prefix`: what
/// precedes the parameters' names, found if not given.
Source open_dcp(std::shared_ptr<Storage> storage, const std::string& folder,
                const std::string& path, const std::optional<std::string>& prefix = std::nullopt);

}  // namespace phalanx
