#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "phalanx/checkpoint/manifest.h"
#include "phalanx/checkpoint/storage.h"

namespace phalanx {

/// Tensors in files of any format that we read, described as a manifest whose parts point into the
/// files. What weights, import, export, diff and copy are read from.
struct Source {
  std::string format;  ///< "phalanx", "huggingface", "dcp" or "torch"
  std::shared_ptr<Storage> storage;
  std::string folder;  ///< that holds the files, in `storage`
  /// run.step 0 and no config where the format has none. run.values["huggingface_config"]: the text
  /// of the config.json that belongs to the tensors, where there is one.
  Manifest manifest;
  std::string path;   ///< of the folder or file, for messages
  std::string index;  ///< path of the file that lists the tensors of others; empty without one
  std::vector<std::string> notices;  ///< what of PyTorch's files is not read, for the log
};

/// Recognises the format by what lies at `path`, a folder, a file or s3://...: manifest.json (ours;
/// or the folder of a run or of checkpoints: its newest), *.safetensors with or without index
/// (Hugging Face), .metadata (PyTorch's distributed checkpoint), a file of torch.save. Names and
/// roles are ours; what is not Hugging Face's name already keeps its own. Error(checkpoint) that
/// says what was found instead. `tells`: the notices go to the log, as one rank's should.
Source open_source(const std::string& path, bool tells = true);

/// The same; none if nothing there has a form that we read.
std::optional<Source> find_source(const std::string& path);

/// Reads all of a checkpoint of ours and compares its hashes, so that what is made of it does not
/// make damage look whole; other formats have none. Error(checkpoint) with what is wrong.
void require_hashes(const Source& source);

/// The elements of `box` (in the whole tensor) into `to`, of shape box.size. Floating-point types
/// are converted, others must be equal. Reads little more than it needs, in pieces.
void read_box(const Source& source, const ManifestEntry& entry, const Box& box,
              const at::Tensor& to);

/// The key of config.json in RunState::values.
inline constexpr const char* huggingface_config_key = "huggingface_config";

}  // namespace phalanx
