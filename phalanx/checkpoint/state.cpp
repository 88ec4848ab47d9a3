#include "phalanx/checkpoint/state.h"

#include <ATen/ATen.h>

#include "phalanx/base/error.h"
#include "phalanx/checkpoint/box.h"
#include "phalanx/device/dtype.h"

namespace phalanx {

namespace {

Dtype dtype_of_named(const at::Tensor& tensor, const std::string& name, const std::string& role) {
  try {
    return dtype_of(tensor);
  } catch (const Error& error) {
    fail(error.code(), name, " (", role, "): ", error.what());
  }
}

}  // namespace

std::vector<StateEntry> shard_entries(const ParameterSpec& spec, int64_t begin, int64_t end,
                                      const at::Tensor& shard, const std::string& role) {
  const int64_t count = std::max<int64_t>(0, end - begin);
  require(count == 0 || (shard.is_contiguous() && shard.numel() == count), ExitCode::checkpoint,
          "the ", role, " shard of ", spec.name, " has ", shard.defined() ? shard.numel() : 0,
          " elements, its range has ", count);
  const std::vector<Box> ranges =
      count > 0 ? boxes_of_range(spec.local_shape, begin, end) : std::vector<Box>{};
  const std::vector<int64_t> strides = row_major_strides(spec.local_shape);
  const at::Tensor flat = count > 0 ? shard.detach() : at::Tensor();
  std::vector<StateEntry> entries;
  for (const Piece& piece : spec.pieces) {
    StateEntry entry{
        piece.name, role, dtype_of_named(shard, piece.name, role), piece.global_shape, {}};
    for (const Box& range : ranges) {
      const auto common = intersection(range, piece.local);
      if (!common) continue;
      Box global = *common;  // from the local parameter's coordinates to the whole tensor's
      for (size_t dim = 0; dim < global.offset.size(); ++dim)
        global.offset[dim] += piece.global.offset[dim] - piece.local.offset[dim];
      const int64_t first = flat_index(common->offset, strides) - begin;
      entry.parts.push_back({std::move(global), flat.as_strided(common->size, strides,
                                                                flat.storage_offset() + first)});
    }
    entries.push_back(std::move(entry));
  }
  return entries;
}

std::vector<StateEntry> whole_entries(const ParameterSpec& spec, const at::Tensor& tensor,
                                      const std::string& role) {
  return shard_entries(spec, 0, element_count(spec.local_shape), tensor.detach().reshape(-1), role);
}

at::Tensor view_of(at::Tensor tensor, const Box& holder, const Box& box) {
  for (size_t dim = 0; dim < box.size.size(); ++dim)
    tensor = tensor.narrow(static_cast<int64_t>(dim), box.offset[dim] - holder.offset[dim],
                           box.size[dim]);
  return tensor;
}

StateEntry whole_entry(std::string name, std::string role, const at::Tensor& tensor) {
  const Dtype dtype = dtype_of_named(tensor, name, role);
  const std::vector<int64_t> shape = tensor.sizes().vec();
  return {std::move(name), std::move(role), dtype, shape, {{whole_box(shape), tensor.detach()}}};
}

}  // namespace phalanx
