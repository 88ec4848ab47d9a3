#include "phalanx/checkpoint/export.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>

#include "phalanx/base/error.h"
#include "phalanx/checkpoint/huggingface_writer.h"
#include "phalanx/checkpoint/stream.h"
#include "phalanx/spec/huggingface.h"

namespace phalanx {
namespace {

bool is_weight(const ManifestEntry& entry) {
  return entry.role == "parameter" || entry.role == "buffer";
}

}  // namespace

Dtype exported_dtype(const ManifestEntry& entry, const ExportOptions& options) {
  const bool converts = options.dtype && is_weight(entry) && is_floating_point(entry.dtype);
  return converts ? *options.dtype : entry.dtype;
}

Dtype main_dtype(const Source& source, const ExportOptions& options) {
  std::map<Dtype, int64_t> elements;
  for (const auto& entry : source.manifest.entries)
    if (is_weight(entry) && is_floating_point(entry.dtype))
      elements[exported_dtype(entry, options)] += element_count(entry.shape);
  if (elements.empty()) return Dtype::float32;
  return std::max_element(elements.begin(), elements.end(),
                          [](const auto& a, const auto& b) { return a.second < b.second; })
      ->first;
}

Exported export_huggingface(const Source& source, const std::string& path,
                            const std::string& config, const ExportOptions& options) {
  std::map<std::string, const ManifestEntry*> by_name;
  std::vector<TensorInfo> tensors;
  for (const auto& entry : source.manifest.entries) {
    if (!is_weight(entry)) continue;
    by_name[entry.name] = &entry;
    tensors.push_back({entry.name, exported_dtype(entry, options), entry.shape, 0, 0});
  }
  require(!tensors.empty(), ExitCode::checkpoint, source.path, " holds no parameters to export");
  HuggingFaceWriter writer(path, tensors, options.max_file_bytes);
  require_hashes(source);
  const at::Tensor buffer = at::empty({stream_buffer_bytes}, at::kByte);
  for (const TensorInfo& tensor : writer.tensors())
    stream_tensor(source, *by_name.at(tensor.name), tensor.dtype, buffer,
                  [&](const void* data, int64_t bytes) { writer.write(data, bytes); });
  const Dtype dtype = main_dtype(source, options);
  writer.finish(update_huggingface_config(config, dtype));
  return {static_cast<int64_t>(tensors.size()), writer.bytes(),
          static_cast<int64_t>(writer.files()), dtype};
}

}  // namespace phalanx
