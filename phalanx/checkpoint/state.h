#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "phalanx/spec/dtype.h"
#include "phalanx/spec/parameter.h"

namespace phalanx {

/// A rectangle of a state tensor and where this rank keeps it.
struct StatePart {
  Box box;           ///< in the whole (Hugging Face) tensor
  at::Tensor local;  ///< shape box.size, any strides: saved from here, loaded into here
};

/// One tensor of the training state as far as this rank holds it. Ranks that hold nothing of a
/// tensor may list it without parts or not at all; ranks that hold the same box share its writing.
/// Parts of one rank do not overlap. Together the parts of all ranks cover the tensor.
struct StateEntry {
  std::string name;  ///< Hugging Face's name of the tensor
  std::string role;  ///< "parameter", "exp_avg", "exp_avg_sq" ...
  Dtype dtype = Dtype::float32;
  std::vector<int64_t> global_shape;
  std::vector<StatePart> parts;
};

/// The entries, one per piece of `spec`, of elements [begin, end) of the flattened local parameter.
/// `shard` holds just these elements, 1-D and contiguous (a view in a unit's shard, for example);
/// the entries are views of it. An empty range gives entries without parts.
std::vector<StateEntry> shard_entries(const ParameterSpec& spec, int64_t begin, int64_t end,
                                      const at::Tensor& shard, const std::string& role);

/// The same for a parameter that this rank holds whole: `tensor` has spec.local_shape, contiguous.
std::vector<StateEntry> whole_entries(const ParameterSpec& spec, const at::Tensor& tensor,
                                      const std::string& role);

/// The view of `tensor`, which holds the box `holder`, of `box` in it.
at::Tensor view_of(at::Tensor tensor, const Box& holder, const Box& box);

/// A tensor that belongs to no parameter (a scalar of the optimizer, for example), held whole.
StateEntry whole_entry(std::string name, std::string role, const at::Tensor& tensor);

}  // namespace phalanx
