#pragma once

#include <memory>
#include <string>
#include <vector>

#include "phalanx/checkpoint/source.h"
#include "phalanx/checkpoint/zip.h"
#include "phalanx/spec/dtype.h"

namespace phalanx {

/// A tensor in an archive of torch.save: where its elements lie in the file.
struct StoredTensor {
  Dtype dtype = Dtype::float32;
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;  ///< in elements
  int64_t offset = 0;            ///< of the first element, in the file
  int64_t bytes = 0;             ///< from the first element to the end of the last
  std::string unread;            ///< why its elements cannot be read; empty if they can
};

/// What torch.save wrote: the tensors under the keys that lead to them ("model", "wte.weight";
/// indices of lists in digits; none if the archive is one tensor), and where other values are.
struct TorchContents {
  struct Leaf {
    std::vector<std::string> path;
    StoredTensor tensor;
  };
  std::vector<Leaf> tensors;
  std::vector<std::string> others;  ///< keys joined by '.', of the outermost without any tensor
};

/// Reads the archive's directory and pickle, not its data, and runs nothing of it.
/// Error(checkpoint) for anything that is not an archive of torch.save with dense tensors in dicts,
/// lists and tuples.
TorchContents read_torch_archive(const ZipRange& range);

/// Whether a file begins as one of torch.save's formats do, old or new.
bool begins_as_torch_save(const Reader& file);

/// A torch.save file as a source, named as torch_names.h says.
Source open_torch_save(std::shared_ptr<Storage> storage, const std::string& file,
                       const std::string& path);

}  // namespace phalanx
