#include "phalanx/checkpoint/huggingface_writer.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "phalanx/base/error.h"
#include "phalanx/spec/parameter.h"

namespace phalanx {

HuggingFaceWriter::HuggingFaceWriter(const std::string& path, std::vector<TensorInfo> tensors,
                                     int64_t max_file_bytes)
    : path_(path), folder_(path), tensors_(std::move(tensors)) {
  require(!tensors_.empty(), ExitCode::checkpoint, "there are no tensors to write to ", path_);
  plan(max_file_bytes);
}

void HuggingFaceWriter::plan(int64_t max_file_bytes) {
  wide_first(tensors_);
  for (size_t i = 0; i < tensors_.size(); ++i) {
    TensorInfo& tensor = tensors_[i];
    tensor.bytes = element_count(tensor.shape) * size_of(tensor.dtype);
    if (files_.empty() || files_.back().bytes + tensor.bytes > max_file_bytes)
      files_.push_back({"", i, i});
    files_.back().last = i + 1;
    files_.back().bytes += tensor.bytes;
    total_bytes_ += tensor.bytes;
  }
  for (size_t number = 0; number < files_.size(); ++number) {
    char name[64];
    std::snprintf(name, sizeof(name), "model-%05zu-of-%05zu.safetensors", number + 1,
                  files_.size());
    files_[number].name = files_.size() == 1 ? "model.safetensors" : name;
  }
}

void HuggingFaceWriter::open(const File& file) {
  std::vector<TensorInfo> mine(tensors_.begin() + int64_t(file.first),
                               tensors_.begin() + int64_t(file.last));
  const std::string header = safetensors_header(mine, {{"format", "pt"}});
  writer_ = folder_.storage().create(file.name);
  writer_->write(header.data(), static_cast<int64_t>(header.size()));
  left_ = file.bytes;
}

void HuggingFaceWriter::write(const void* data, int64_t bytes) {
  const char* from = static_cast<const char*>(data);
  while (true) {
    if (!writer_) {
      if (current_ == files_.size()) break;
      open(files_[current_++]);
    }
    const int64_t count = std::min(bytes, left_);
    if (count > 0) writer_->write(from, count);
    from += count, bytes -= count, left_ -= count;
    if (left_ > 0) break;
    writer_->finish();
    writer_.reset();
  }
  require(bytes == 0, ExitCode::checkpoint, path_, ": ", bytes, " bytes beyond the last tensor");
}

std::string HuggingFaceWriter::index() const {
  nlohmann::json weights = nlohmann::json::object();
  for (const File& file : files_)
    for (size_t i = file.first; i < file.last; ++i) weights[tensors_[i].name] = file.name;
  return nlohmann::json{{"metadata", {{"total_size", total_bytes_}}}, {"weight_map", weights}}.dump(
             2) +
         "\n";
}

void HuggingFaceWriter::finish(const std::string& config) {
  write(nullptr, 0);  // a last file without elements
  if (writer_)
    fail(ExitCode::checkpoint, path_, ": the last ", left_, " bytes of ", files_[current_ - 1].name,
         " were not written");
  if (files_.size() > 1) folder_.storage().replace("model.safetensors.index.json", index());
  if (!config.empty()) folder_.storage().replace("config.json", config);
  folder_.finish();
}

}  // namespace phalanx
