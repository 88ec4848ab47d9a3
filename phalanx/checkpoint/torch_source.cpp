#include "phalanx/checkpoint/torch_source.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "phalanx/base/error.h"
#include "phalanx/checkpoint/box.h"
#include "phalanx/checkpoint/torch_names.h"
#include "phalanx/device/dtype.h"
#include "phalanx/spec/huggingface.h"
#include "phalanx/spec/parameter.h"

namespace phalanx {
namespace {

bool row_major(const StoredTensor& tensor) {
  const auto wanted = row_major_strides(tensor.shape);
  for (size_t dim = 0; dim < tensor.shape.size(); ++dim)
    if (tensor.shape[dim] > 1 && tensor.strides[dim] != wanted[dim]) return false;
  return true;
}

// PyTorch counts steps for each parameter, we for the run: the count if all parameters have one and
// the same.
std::optional<int64_t> common_step(const Source& source) {
  std::optional<double> common;
  for (const auto& entry : source.manifest.entries) {
    if (entry.role != "step") continue;
    if (element_count(entry.shape) != 1) return std::nullopt;
    const at::Tensor value = at::empty(entry.shape, scalar_type(entry.dtype));
    read_box(source, entry, whole_box(entry.shape), value);
    const double step = value.to(at::kDouble).item<double>();
    if (common.value_or(step) != step || step != std::floor(step) || step < 0 || step > 1e15)
      return std::nullopt;
    common = step;
  }
  if (!common) return std::nullopt;
  return static_cast<int64_t>(*common);
}

void take_step(Source& source) {
  const auto step = common_step(source);
  if (!step) return;
  source.manifest.run.step = *step;
  std::erase_if(source.manifest.entries, [](const auto& entry) { return entry.role == "step"; });
}

// A file of torch.save does not say what model it is of; the embedding's name does.
bool names_gpt2(const TorchNames& names) {
  return std::any_of(names.names.begin(), names.names.end(), [](const TorchName& name) {
    return name.name == "wte.weight" || name.name == "transformer.wte.weight";
  });
}

}  // namespace

ManifestEntry::Part part_of(const StoredTensor& tensor, const Box& box, const std::string& file) {
  ManifestEntry::Part part;
  part.box = box;
  part.file = file;
  part.offset = tensor.offset;
  part.bytes = tensor.bytes;
  if (!row_major(tensor)) part.strides = tensor.strides;
  return part;
}

void add_torch_tensors(Source& source, TorchTensors found) {
  require(!found.tensors.empty(), ExitCode::checkpoint, source.path, " holds no tensor",
          found.others.empty() ? "" : ", only " + some_of(found.others));
  std::vector<std::vector<std::string>> paths;
  for (const TorchTensor& tensor : found.tensors) paths.push_back(tensor.path);
  const TorchNames names = name_torch_tensors(paths);
  const std::string model_type = found.transformers && names_gpt2(names) ? "gpt2" : "";
  auto& entries = source.manifest.entries;
  for (size_t i = 0; i < paths.size(); ++i) {
    TorchTensor& tensor = found.tensors[i];
    auto [name, role] = names.names[i];
    if (role == "parameter" && tensor.entry.role == "buffer") role = "buffer";
    if (role == "parameter") name = huggingface_name(model_type, name);
    if (name.empty()) continue;
    require(tensor.unread.empty(), ExitCode::checkpoint, tensor.unread);
    entries.push_back(std::move(tensor.entry));
    entries.back().name = name;
    entries.back().role = role;
  }
  sort_entries(source.manifest, source.path);
  source.notices = names.notices;
  if (!found.others.empty())
    source.notices.push_back("not read, since they are no tensors: " + some_of(found.others));
  take_step(source);
}

}  // namespace phalanx
