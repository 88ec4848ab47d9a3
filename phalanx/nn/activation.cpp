#include "phalanx/nn/activation.h"

#include <ATen/ops/empty.h>

#include "phalanx/kernels/bias_gelu.h"
#include "phalanx/nn/dtype.h"
#include "phalanx/nn/linear.h"

namespace phalanx {
namespace {

at::Tensor backward(const Parameter& bias, const at::Tensor& input,
                    const at::Tensor& output_gradient) {
  return with_float_type(input, "gelu", [&](auto type) {
    using T = decltype(type);
    const at::Tensor x = input.contiguous(), gradient = output_gradient.contiguous();
    at::Tensor input_gradient = at::empty(x.sizes(), x.options());
    at::Tensor bias_gradient = at::empty({x.size(-1)}, x.options());
    kernels::bias_gelu_backward<T>(gradient.const_data_ptr<T>(), x.const_data_ptr<T>(),
                                   bias->tensor.const_data_ptr<T>(),
                                   input_gradient.mutable_data_ptr<T>(),
                                   bias_gradient.mutable_data_ptr<T>(), rows_of(x), x.size(-1));
    write_gradient(bias, bias_gradient);
    return input_gradient;
  });
}

}  // namespace

at::Tensor bias_gelu(const at::Tensor& input, const Parameter& bias) {
  const at::Tensor output = with_float_type(input, "gelu", [&](auto type) {
    using T = decltype(type);
    BelowAutograd below;
    const at::Tensor x = input.contiguous();
    at::Tensor y = at::empty(x.sizes(), x.options());
    kernels::bias_gelu<T>(x.const_data_ptr<T>(), bias->tensor.const_data_ptr<T>(),
                          y.mutable_data_ptr<T>(), rows_of(x), x.size(-1));
    return y;
  });
  return differentiable(
      "bias_gelu", {input}, {bias}, {input}, {output},
      [bias](const Tensors& saved, const Tensors& gradients, const std::vector<bool>&) -> Tensors {
        if (!gradients[0].defined()) return {at::Tensor()};
        return {backward(bias, saved[0], gradients[0])};
      })[0];
}

}  // namespace phalanx
