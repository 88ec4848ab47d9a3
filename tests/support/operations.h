#pragma once

#include <ATen/ATen.h>

#include "phalanx/autograd/op.h"
#include "phalanx/autograd/parameter.h"

namespace phalanx::testing {

/// y = x w for a parameter, as an operation of ours.
inline at::Tensor matmul(const at::Tensor& x, const Parameter& w) {
  at::Tensor y;
  {
    BelowAutograd below;
    y = at::mm(x, w->tensor);
  }
  return differentiable("matmul", {x}, {w}, {x}, {y},
                        [w](const Tensors& saved, const Tensors& gradients,
                            const std::vector<bool>& needs) -> Tensors {
                          const at::Tensor x = saved[0], dy = gradients[0];
                          weight_gradient(w, [x, dy](at::Tensor target, bool accumulate) {
                            if (accumulate)
                              target.addmm_(x.t(), dy);
                            else
                              at::mm_out(target, x.t(), dy);
                          });
                          return {needs[0] ? at::mm(dy, w->tensor.t()) : at::Tensor()};
                        })[0];
}

}  // namespace phalanx::testing
