#pragma once

#include <string>
#include <vector>

#include "phalanx/checkpoint/source.h"
#include "phalanx/checkpoint/torch_save.h"

namespace phalanx {

// What the readers of torch.save files and of DCP folders have in common.

ManifestEntry::Part part_of(const StoredTensor& tensor, const Box& box, const std::string& file);

/// A tensor before it has a name of ours.
struct TorchTensor {
  std::vector<std::string> path;
  ManifestEntry entry;  ///< role "buffer" where that is known
  std::string unread;   ///< why its elements cannot be read, an error unless it is left out; or ""
};
struct TorchTensors {
  std::vector<TorchTensor> tensors;
  std::vector<std::string> others;  ///< values that are no tensors
  bool transformers = false;        ///< names may be those of old files of `transformers`
};

/// Names the tensors, puts them into the source's manifest in its order, takes the optimizer's step
/// counts for run.step if they agree, and tells the log what is left out.
void add_torch_tensors(Source& source, TorchTensors found);

}  // namespace phalanx
