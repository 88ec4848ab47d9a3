#pragma once

#include <ATen/core/Tensor.h>

#include "phalanx/spec/dtype.h"

namespace phalanx {

/// LibTorch's element type for ours, and back. dtype_of throws Error(usage) for types that we have
/// no name for.
at::ScalarType scalar_type(Dtype dtype);
Dtype dtype_of(const at::Tensor& tensor);

}  // namespace phalanx
