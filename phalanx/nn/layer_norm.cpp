#include "phalanx/nn/layer_norm.h"

#include <ATen/ops/empty.h>

#include "phalanx/kernels/layer_norm.h"
#include "phalanx/nn/dtype.h"
#include "phalanx/nn/linear.h"

namespace phalanx {
namespace {

struct Norm {
  Parameter branch_bias, weight, bias;
};

struct Forward {
  at::Tensor stream, normed, statistics;
};

Forward forward(const at::Tensor& residual, const at::Tensor& branch, const Norm& norm,
                double epsilon) {
  return with_float_type(residual, "layer norm", [&](auto type) {
    using T = decltype(type);
    BelowAutograd below;
    const at::Tensor input = residual.contiguous();
    const at::Tensor added = branch.defined() ? branch.contiguous() : branch;
    Forward result;
    result.stream = branch.defined() ? at::empty(input.sizes(), input.options()) : input;
    result.normed = at::empty(input.sizes(), input.options());
    result.statistics = at::empty({rows_of(input), 2}, input.options());
    kernels::LayerNorm<T> call;
    call.residual = input.const_data_ptr<T>();
    if (branch.defined()) call.branch = added.const_data_ptr<T>();
    if (norm.branch_bias) call.branch_bias = norm.branch_bias->tensor.const_data_ptr<T>();
    call.weight = norm.weight->tensor.const_data_ptr<T>();
    call.bias = norm.bias->tensor.const_data_ptr<T>();
    if (branch.defined()) call.stream = result.stream.mutable_data_ptr<T>();
    call.output = result.normed.mutable_data_ptr<T>();
    call.statistics = result.statistics.mutable_data_ptr<T>();
    call.rows = rows_of(input);
    call.columns = input.size(-1);
    call.epsilon = epsilon;
    kernels::layer_norm(call);
    return result;
  });
}

// The gradient of the stream's inputs; `stream_gradient` may be undefined.
at::Tensor backward(const Norm& norm, const at::Tensor& stream, const at::Tensor& statistics,
                    const at::Tensor& stream_gradient, const at::Tensor& normed_gradient) {
  return with_float_type(stream, "layer norm", [&](auto type) {
    using T = decltype(type);
    const at::Tensor gradient = normed_gradient.contiguous();
    const at::Tensor extra =
        stream_gradient.defined() ? stream_gradient.contiguous() : at::Tensor();
    const int64_t columns = stream.size(-1);
    at::Tensor input_gradient = at::empty(stream.sizes(), stream.options());
    at::Tensor sums = at::empty({3, columns}, stream.options());
    T* sum = sums.mutable_data_ptr<T>();
    kernels::LayerNormBackward<T> call;
    call.output_gradient = gradient.const_data_ptr<T>();
    if (extra.defined()) call.stream_gradient = extra.const_data_ptr<T>();
    call.stream = stream.const_data_ptr<T>();
    call.statistics = statistics.const_data_ptr<T>();
    call.weight = norm.weight->tensor.const_data_ptr<T>();
    call.input_gradient = input_gradient.mutable_data_ptr<T>();
    call.weight_gradient = sum;
    call.bias_gradient = sum + columns;
    if (norm.branch_bias) call.branch_bias_gradient = sum + 2 * columns;
    call.rows = rows_of(stream);
    call.columns = columns;
    kernels::layer_norm_backward(call);
    write_gradient(norm.weight, sums[0]);
    write_gradient(norm.bias, sums[1]);
    if (norm.branch_bias) write_gradient(norm.branch_bias, sums[2]);
    return input_gradient;
  });
}

// When only the stream was used, its gradient passes through and is the branch bias's.
at::Tensor stream_only(const Norm& norm, const at::Tensor& gradient) {
  if (norm.branch_bias && gradient.defined())
    write_gradient(norm.branch_bias, gradient.reshape({-1, gradient.size(-1)}).sum(0));
  return gradient;
}

NormedStream norm_stream(const Tensors& inputs, const Norm& norm, double epsilon) {
  const at::Tensor branch = inputs.size() > 1 ? inputs[1] : at::Tensor();
  const Forward result = forward(inputs[0], branch, norm, epsilon);
  const at::Tensor stream = branch.defined() ? result.stream : inputs[0].detach();
  const Tensors outputs = differentiable(
      "layer_norm", inputs, {norm.branch_bias, norm.weight, norm.bias},
      {result.stream, result.statistics}, {stream, result.normed},
      [norm, count = inputs.size()](const Tensors& saved, const Tensors& gradients,
                                    const std::vector<bool>&) {
        const at::Tensor gradient =
            gradients[1].defined() ? backward(norm, saved[0], saved[1], gradients[0], gradients[1])
                                   : stream_only(norm, gradients[0]);
        return Tensors(count, gradient);
      });
  return {outputs[0], outputs[1]};
}

}  // namespace

at::Tensor layer_norm(const at::Tensor& input, const Parameter& weight, const Parameter& bias,
                      double epsilon) {
  return fork_layer_norm(input, weight, bias, epsilon).normed;
}

NormedStream fork_layer_norm(const at::Tensor& input, const Parameter& weight,
                             const Parameter& bias, double epsilon) {
  return norm_stream({input}, {nullptr, weight, bias}, epsilon);
}

NormedStream add_layer_norm(const at::Tensor& residual, const at::Tensor& branch,
                            const Parameter& branch_bias, const Parameter& weight,
                            const Parameter& bias, double epsilon) {
  return norm_stream({residual, branch}, {branch_bias, weight, bias}, epsilon);
}

}  // namespace phalanx
