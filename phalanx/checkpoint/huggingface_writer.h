#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "phalanx/checkpoint/new_folder.h"
#include "phalanx/checkpoint/safetensors.h"

namespace phalanx {

/// Writes a Hugging Face folder from start to end: model.safetensors, or
/// model-00001-of-0000N.safetensors with model.safetensors.index.json, and config.json. The folder
/// appears whole once finish() returned, or not at all (in an object store: config.json is last).
class HuggingFaceWriter {
 public:
  /// `tensors`: name, dtype, shape. A file holds at most `max_file_bytes` of data, or one tensor.
  /// Error(checkpoint) if something lies at `path` already.
  HuggingFaceWriter(const std::string& path, std::vector<TensorInfo> tensors,
                    int64_t max_file_bytes);

  /// The tensors in the order in which their bytes are to be written: wide_first().
  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  /// The next bytes of their row-major elements, one tensor after another.
  void write(const void* data, int64_t bytes);
  /// `config`: the text of config.json; none is written if it is empty.
  void finish(const std::string& config);

  int64_t bytes() const { return total_bytes_; }  ///< of all tensors
  size_t files() const { return files_.size(); }

 private:
  struct File {
    std::string name;
    size_t first, last;  // tensors [first, last)
    int64_t bytes = 0;
  };
  void plan(int64_t max_file_bytes);
  void open(const File& file);
  std::string index() const;

  std::string path_;
  NewFolder folder_;
  std::vector<TensorInfo> tensors_;
  std::vector<File> files_;
  int64_t total_bytes_ = 0;
  std::unique_ptr<Writer> writer_;  // of files_[current_ - 1]
  size_t current_ = 0;
  int64_t left_ = 0;  // bytes to come in that file
};

}  // namespace phalanx
