#include "phalanx/autograd/parameter.h"

#include <ATen/ops/empty.h>

#include "phalanx/autograd/deferred.h"
#include "phalanx/autograd/op.h"
#include "phalanx/autograd/storage.h"

namespace phalanx {

Parameter make_parameter(ParameterSpec spec, at::ScalarType dtype) {
  auto state = std::make_shared<ParameterState>();
  state->tensor = at::empty({0}, at::TensorOptions().dtype(dtype));
  state->tensor.unsafeGetTensorImpl()->set_sizes_contiguous(spec.local_shape);
  detach_storage(state->tensor, "parameter " + spec.name + " has no memory yet");
  state->tensor.set_requires_grad(spec.trainable);
  state->spec = std::move(spec);
  return state;
}

namespace {

void write_now(const Parameter& parameter,
               const std::function<void(const at::Tensor&, bool)>& write) {
  GradMode no_grad(false);
  if (parameter->slot) {
    const GradientSlot::Target target = parameter->slot->target(*parameter);
    write(target.tensor, target.accumulate);
    return;
  }
  at::Tensor& gradient = parameter->tensor.mutable_grad();
  const bool accumulate = gradient.defined();
  if (!accumulate) gradient = at::empty(parameter->spec.local_shape, parameter->tensor.options());
  write(gradient, accumulate);
}

}  // namespace

void weight_gradient(const Parameter& parameter,
                     std::function<void(const at::Tensor&, bool)> write) {
  if (!parameter->spec.trainable) return;
  if (DeferredGradients* queue = DeferredGradients::active())
    queue->push([parameter, write = std::move(write)] { write_now(parameter, write); });
  else
    write_now(parameter, write);
}

}  // namespace phalanx
