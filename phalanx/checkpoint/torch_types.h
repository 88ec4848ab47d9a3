#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "phalanx/checkpoint/pickle.h"
#include "phalanx/spec/dtype.h"

namespace phalanx {

/// Our element type for "torch.float32" and for "torch.FloatStorage"; none if we have none for it.
std::optional<Dtype> dtype_of_torch(std::string_view name);
std::optional<Dtype> dtype_of_storage(std::string_view name);
/// Ends sentences about other types.
std::string readable_dtypes();

/// The numbers of a torch.Size, or of a plain tuple.
std::vector<int64_t> torch_size(const Pickle& pickle, Pickle::Ref ref, std::string_view what);

/// The names in pickles that stand for plain data: torch.save's of dicts and tensors, and common
/// leaves beside them (numpy scalars, argparse.Namespace, paths), which are not read.
bool is_torch_data(std::string_view global);

}  // namespace phalanx
