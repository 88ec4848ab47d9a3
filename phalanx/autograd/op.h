#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <initializer_list>
#include <memory>
#include <string_view>
#include <vector>

#include "phalanx/autograd/parameter.h"

namespace phalanx {

using Tensors = std::vector<at::Tensor>;

/// Makes the backward of one of our operations: given the tensors saved in forward and the
/// gradients of the outputs (undefined where none arrived), returns the gradients of the inputs
/// (undefined where `needs[i]` is false or there is none). Runs without grad mode.
using Backward = std::function<Tensors(const Tensors& saved, const Tensors& gradients,
                                       const std::vector<bool>& needs)>;

/// Attaches an operation that has already been computed to the autograd graph, as one node.
///   inputs     differentiable inputs; may be empty
///   parameters that backward writes gradients of through weight_gradient(): outputs then require a
///              gradient even if no input does
///   saved      what backward reads. Passes through LibTorch's saved-tensor hooks. Parameters never
///              do: capture the Parameter in `backward`
///   outputs    fresh tensors computed below autograd; returned with history attached
/// Without grad mode, or if nothing needs a gradient, returns `outputs` as they are.
Tensors differentiable(std::string_view name, const Tensors& inputs,
                       std::initializer_list<Parameter> parameters, Tensors saved, Tensors outputs,
                       Backward backward);

/// The same, with the need for a node given by the caller instead of by parameters.
Tensors attach_node(std::string_view name, const Tensors& inputs, Tensors saved, Tensors outputs,
                    Backward backward);

/// Whether differentiable() would attach a node: lets a forward skip what only backward needs.
bool needs_gradient(const Tensors& inputs, std::initializer_list<Parameter> parameters);

/// While alive on this thread, operations compute below autograd: no graph, no version counting.
class BelowAutograd {
 public:
  BelowAutograd();
  ~BelowAutograd();
  BelowAutograd(const BelowAutograd&) = delete;

 private:
  struct Guards;
  std::unique_ptr<Guards> guards_;
};

/// Sets grad mode for a scope (at::NoGradGuard without its header).
class GradMode {
 public:
  explicit GradMode(bool enabled);
  ~GradMode();
  GradMode(const GradMode&) = delete;

 private:
  bool before_;
};

/// Runs backward from `outputs` with `gradients`, accumulating into leaves.
void run_backward(const Tensors& outputs, const Tensors& gradients);

}  // namespace phalanx
