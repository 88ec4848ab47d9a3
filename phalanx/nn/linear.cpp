#include "phalanx/nn/linear.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>

#include "phalanx/kernels/residual.h"
#include "phalanx/nn/dtype.h"

namespace phalanx {
namespace {

at::Tensor as_matrix(const at::Tensor& tensor) { return tensor.reshape({-1, tensor.size(-1)}); }

std::vector<int64_t> with_last(const at::Tensor& like, int64_t last) {
  auto shape = like.sizes().vec();
  shape.back() = last;
  return shape;
}

at::Tensor in_out(const Parameter& weight, WeightLayout layout) {
  return layout == WeightLayout::in_out ? weight->tensor : weight->tensor.t();
}

at::Tensor bias_sums(const at::Tensor& gradient) {
  return with_float_type(gradient, "a bias gradient", [&](auto type) {
    using T = decltype(type);
    const at::Tensor dense = gradient.contiguous();
    at::Tensor sums = at::empty({gradient.size(-1)}, gradient.options());
    kernels::column_sums<T>(dense.const_data_ptr<T>(), sums.mutable_data_ptr<T>(), rows_of(dense),
                            dense.size(-1));
    return sums;
  });
}

// The GEMM writes into the slot itself.
void weight_product(const Parameter& weight, WeightLayout layout, at::Tensor input,
                    at::Tensor gradient) {
  weight_gradient(weight, [layout, input = std::move(input), gradient = std::move(gradient)](
                              const at::Tensor& target, bool accumulate) {
    const bool stored_in_out = layout == WeightLayout::in_out;
    const at::Tensor left = stored_in_out ? input.t() : gradient.t();
    const at::Tensor& right = stored_in_out ? gradient : input;
    at::Tensor out = target;
    if (accumulate)
      out.addmm_(left, right);
    else
      at::mm_out(out, left, right);
  });
}

}  // namespace

void write_gradient(const Parameter& parameter, at::Tensor gradient) {
  weight_gradient(parameter,
                  [gradient = std::move(gradient)](const at::Tensor& target, bool accumulate) {
                    if (accumulate)
                      target.add_(gradient);
                    else
                      target.copy_(gradient);
                  });
}

at::Tensor linear(const at::Tensor& input, const Parameter& weight, const Parameter& bias,
                  WeightLayout layout) {
  at::Tensor output;
  {
    BelowAutograd below;
    const at::Tensor matrix = as_matrix(input), w = in_out(weight, layout);
    require(matrix.size(1) == w.size(0), ExitCode::usage, "linear layer ", weight->spec.name,
            ": the input is ", matrix.size(1), " wide, the weight wants ", w.size(0));
    output = (bias ? at::addmm(bias->tensor, matrix, w) : at::mm(matrix, w))
                 .view(with_last(input, w.size(1)));
  }
  return differentiable("linear", {input}, {weight, bias}, {input}, {output},
                        [weight, bias, layout](const Tensors& saved, const Tensors& gradients,
                                               const std::vector<bool>& needs) -> Tensors {
                          if (!gradients[0].defined()) return {at::Tensor()};
                          const at::Tensor gradient = as_matrix(gradients[0]);
                          at::Tensor input_gradient;
                          if (needs[0]) {
                            BelowAutograd below;
                            input_gradient =
                                at::mm(gradient, in_out(weight, layout).t()).view(saved[0].sizes());
                          }
                          if (bias && bias->spec.trainable)
                            write_gradient(bias, bias_sums(gradient));
                          weight_product(weight, layout, as_matrix(saved[0]), gradient);
                          return {input_gradient};
                        })[0];
}

at::Tensor add_bias(const at::Tensor& residual, const at::Tensor& branch, const Parameter& bias) {
  const at::Tensor output = with_float_type(residual, "add_bias", [&](auto type) {
    using T = decltype(type);
    BelowAutograd below;
    const at::Tensor a = residual.contiguous(), b = branch.contiguous();
    at::Tensor sum = at::empty(a.sizes(), a.options());
    kernels::add_bias<T>(a.const_data_ptr<T>(), b.const_data_ptr<T>(),
                         bias->tensor.const_data_ptr<T>(), sum.mutable_data_ptr<T>(), rows_of(a),
                         a.size(-1));
    return sum;
  });
  return differentiable(
      "add_bias", {residual, branch}, {bias}, {}, {output},
      [bias](const Tensors&, const Tensors& gradients, const std::vector<bool>&) -> Tensors {
        if (!gradients[0].defined()) return {at::Tensor(), at::Tensor()};
        if (bias->spec.trainable) write_gradient(bias, bias_sums(gradients[0]));
        return {gradients[0], gradients[0]};
      })[0];
}

}  // namespace phalanx
