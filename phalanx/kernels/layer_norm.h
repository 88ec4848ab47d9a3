#pragma once

#include <cstdint>

namespace phalanx::kernels {

/// Layer norm (Ba et al. 2016) of a residual stream, with what is added to the stream before it in
/// the same pass. Row-major [rows, columns]; float and double.
///   stream = residual + branch + branch_bias   (branch and branch_bias may be null; with a null
///                                               branch `stream` is not written)
///   output = (stream - mean) / sqrt(variance + epsilon) weight + bias
/// mean and inverse deviation of each row go to `statistics` [rows, 2].
template <class T>
struct LayerNorm {
  const T *residual, *branch = nullptr, *branch_bias = nullptr, *weight, *bias;
  T *stream = nullptr, *output, *statistics;
  int64_t rows, columns;
  double epsilon;
};
template <class T>
void layer_norm(const LayerNorm<T>& call);

/// Gradients, each overwritten. stream_gradient (may be null: zero) is what arrives at `stream`
/// besides; input_gradient is the gradient of residual and of branch alike. The column sums are the
/// gradients of weight, bias and branch_bias (null: not wanted).
template <class T>
struct LayerNormBackward {
  const T *output_gradient, *stream_gradient = nullptr, *stream, *statistics, *weight;
  T *input_gradient, *weight_gradient, *bias_gradient, *branch_bias_gradient = nullptr;
  int64_t rows, columns;
};
template <class T>
void layer_norm_backward(const LayerNormBackward<T>& call);

}  // namespace phalanx::kernels
