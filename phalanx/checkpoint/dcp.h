#pragma once

#include <memory>
#include <string>

#include "phalanx/checkpoint/export.h"
#include "phalanx/checkpoint/source.h"

namespace phalanx {

// Folders of PyTorch's torch.distributed.checkpoint: `.metadata`, a pickle of dataclasses that says
// which chunks tensors have and where, and files of torch.save archives, one for each chunk.

/// A folder as a source. Runs nothing of the pickle. Names as torch_names.h says.
Source open_dcp(std::shared_ptr<Storage> storage, const std::string& folder,
                const std::string& path);

/// Writes all tensors of `source` as a new folder, `.metadata` last: parameters and buffers under
/// "model.NAME", optimizer states under "optimizer.state.NAME.ROLE", with a step for each exp_avg
/// (the updates that the run has made; its steps if it does not say), others under
/// "other.NAME". Data go into files of at most `options.max_file_bytes` and one chunk. Holds at
/// most 64 MiB of data. Error(checkpoint) if `path` exists; the folder appears whole or not at all.
Exported export_dcp(const Source& source, const std::string& path,
                    const ExportOptions& options = {});

}  // namespace phalanx
