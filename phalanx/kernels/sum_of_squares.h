#pragma once

#include <ATen/core/Tensor.h>

namespace phalanx {

/// Sum of the squares of all elements of a contiguous float32 or float64 tensor, accumulated in
/// double, in an order that depends on nothing but the length.
double sum_of_squares(const at::Tensor& tensor);

}  // namespace phalanx
