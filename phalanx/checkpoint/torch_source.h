#pragma once

#include <optional>
#include <string>
#include <vector>

#include "phalanx/checkpoint/source.h"
#include "phalanx/checkpoint/torch_save.h"

namespace phalanx {

// What the readers of torch.save files and of DCP folders have in common.

ManifestEntry::Part part_of(const StoredTensor& tensor, const Box& box, const std::string& file);

/// Tensors before they have names of ours.
struct TorchTensors {
  std::vector<std::vector<std::string>> paths;
  std::vector<ManifestEntry> entries;  ///< one for each path; role "buffer" where that is known
  std::vector<std::string> others;     ///< values that are no tensors
  /// Of each path why its elements cannot be read, or "": an error unless it is left out. May be
  /// empty if all can.
  std::vector<std::string> unread;
  bool transformers = false;  ///< names may be those of old files of `transformers`
};

/// Names the tensors, puts them into the source's manifest in its order, takes the optimizer's step
/// counts for run.step if they agree, and tells the log what is left out.
void add_torch_tensors(Source& source, TorchTensors tensors,
                       const std::optional<std::string>& prefix);

}  // namespace phalanx
