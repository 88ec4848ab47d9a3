#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>

#include "phalanx/spec/parameter.h"

namespace phalanx {

struct ParameterState;

/// Where the gradient of a parameter is written. The engine's units implement it; a parameter
/// without one writes to its tensor's `.grad`.
class GradientSlot {
 public:
  virtual ~GradientSlot() = default;
  struct Target {
    at::Tensor tensor;  ///< the parameter's shape, in the reduce dtype
    bool accumulate;    ///< add to it; else overwrite every element
  };
  /// Called once per contribution, just before it is written.
  virtual Target target(const ParameterState& parameter) = 0;
};

/// A parameter of the model. `tensor` keeps its TensorImpl for ever; its memory comes and goes with
/// its unit. Shared by the layers that use it (tied weights are one state).
struct ParameterState {
  ParameterSpec spec;
  at::Tensor tensor;             ///< full local shape, compute dtype, requires_grad if trainable
  GradientSlot* slot = nullptr;  ///< null: the tensor's .grad
  int index = -1;                ///< in its unit, set by the unit
};
using Parameter = std::shared_ptr<ParameterState>;

/// A parameter whose tensor has its shape and dtype but no memory yet: the engine, or
/// allocate_and_initialize() for a model without an engine, gives it some.
Parameter make_parameter(ParameterSpec spec, at::ScalarType dtype);

/// Writes a gradient: calls `write(target, accumulate)` now, or later while weight gradients are
/// deferred (deferred.h). Operations capture the parameter itself, never its tensor.
void weight_gradient(const Parameter& parameter,
                     std::function<void(const at::Tensor& target, bool accumulate)> write);

}  // namespace phalanx
