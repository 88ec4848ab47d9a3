#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "phalanx/checkpoint/source.h"

namespace phalanx {

struct ExportOptions {
  /// Of parameters and buffers that have a floating-point type; none: as they are saved.
  std::optional<Dtype> dtype;
  int64_t max_file_bytes = 5'000'000'000;
};

struct Exported {
  int64_t tensors = 0, bytes = 0, files = 0;
  Dtype dtype = Dtype::float32;  ///< main_dtype()
};

/// The type that an entry has in an export.
Dtype exported_dtype(const ManifestEntry& entry, const ExportOptions& options);

/// The floating-point type that most elements of parameters and buffers have in an export, which
/// config.json names; float32 if there are none.
Dtype main_dtype(const Source& source, const ExportOptions& options);

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
