#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "phalanx/checkpoint/source.h"

namespace phalanx {

struct ExportOptions {
  std::optional<Dtype> dtype;  ///< of floating-point tensors; none: as they are saved
  int64_t max_file_bytes = 5'000'000'000;
};

struct Exported {
  int64_t tensors = 0, bytes = 0, files = 0;
  Dtype dtype = Dtype::float32;  ///< of most elements: what config.json says
};

/// Writes parameters and buffers of `source` as a Hugging Face folder that `transformers` loads:
/// `config` (the text of a config.json, whose type is set to that of the weights), safetensors
/// files of whole tensors, an index if there are several. Streams: holds less than 64 MiB of any
/// tensor. The folder appears whole or not at all; Error(checkpoint) if there is one.
Exported export_huggingface(const Source& source, const std::string& path,
                            const std::string& config, const ExportOptions& options);

/// Writes all of `source` as a checkpoint of ours into `folder` (of checkpoints, or s3://...) and
/// returns its path. `run` goes into its manifest; Error(checkpoint) if that step is there already.
std::string import_checkpoint(const Source& source, const std::string& folder, const RunState& run);

}  // namespace phalanx
