#pragma once

#include "phalanx/autograd/op.h"

namespace phalanx {

/// Layer norm over the last dimension, weight and bias [columns] (Ba et al. 2016).
at::Tensor layer_norm(const at::Tensor& input, const Parameter& weight, const Parameter& bias,
                      double epsilon);

/// A residual stream and its normalized form.
struct NormedStream {
  at::Tensor stream, normed;
};

/// stream = input unchanged, normed = layer_norm(input). Use `stream` for the residual path: its
/// gradient and that of the norm are then summed in one pass.
NormedStream fork_layer_norm(const at::Tensor& input, const Parameter& weight,
                             const Parameter& bias, double epsilon);

/// stream = residual + branch + branch_bias, normed = layer_norm(stream), in one pass each way.
/// `branch_bias` may be null.
NormedStream add_layer_norm(const at::Tensor& residual, const at::Tensor& branch,
                            const Parameter& branch_bias, const Parameter& weight,
                            const Parameter& bias, double epsilon);

}  // namespace phalanx
