#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>

#include "phalanx/base/error.h"

namespace phalanx {

/// Calls `body(T{})` with the C++ type of the tensor's elements, for an operation that is written
/// for float32 and float64. Throws Error(usage) for other types.
template <class Body>
decltype(auto) with_float_type(const at::Tensor& tensor, std::string_view operation,
                               const Body& body) {
  if (tensor.scalar_type() == at::kFloat) return body(float{});
  require(tensor.scalar_type() == at::kDouble, ExitCode::usage, operation, " of ",
          tensor.scalar_type(), " is not available; use float32 or float64");
  return body(double{});
}

/// Rows of the tensor seen as a matrix of its last dimension.
inline int64_t rows_of(const at::Tensor& tensor) { return tensor.numel() / tensor.size(-1); }

}  // namespace phalanx
