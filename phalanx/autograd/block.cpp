#include "phalanx/autograd/block.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>

namespace phalanx {
namespace {

bool is_differentiable(const at::Tensor& tensor) {
  return tensor.defined() && tensor.requires_grad();
}

// Aliases without history: what leaves a node must not be the tensor object that came in.
Tensors detached(const Tensors& tensors) {
  Tensors aliases;
  aliases.reserve(tensors.size());
  for (const auto& tensor : tensors) aliases.push_back(tensor.defined() ? tensor.detach() : tensor);
  return aliases;
}

Tensors recompute_backward(const std::function<Tensors(const Tensors&)>& function,
                           const std::vector<bool>& differentiable_inputs, const Tensors& saved,
                           const Tensors& gradients) {
  GradMode with_grad(true);
  Tensors inputs = detached(saved);
  for (size_t i = 0; i < inputs.size(); ++i)
    if (differentiable_inputs[i]) inputs[i].set_requires_grad(true);
  const Tensors outputs = function(inputs);
  Tensors roots, root_gradients;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!is_differentiable(outputs[i]) || !gradients[i].defined()) continue;
    roots.push_back(outputs[i]);
    root_gradients.push_back(gradients[i]);
  }
  if (!roots.empty()) run_backward(roots, root_gradients);
  Tensors input_gradients;
  for (size_t i = 0; i < inputs.size(); ++i)
    input_gradients.push_back(differentiable_inputs[i] ? inputs[i].grad() : at::Tensor());
  return input_gradients;
}

}  // namespace

// A nested backward rather than saved-tensor hooks: our operations reach parameters without
// autograd's knowledge, so the inner graph can be built and used up inside one node, and nothing of
// it is kept between forward and backward.
Tensors recompute(const Tensors& inputs, std::function<Tensors(const Tensors&)> function) {
  if (!at::GradMode::is_enabled()) return function(inputs);
  Tensors outputs;
  {
    GradMode no_grad(false);
    outputs = detached(function(inputs));
  }
  std::vector<bool> differentiable_inputs(inputs.size());
  std::transform(inputs.begin(), inputs.end(), differentiable_inputs.begin(), is_differentiable);
  return attach_node("recompute", inputs, inputs, std::move(outputs),
                     [function = std::move(function), differentiable_inputs](
                         const Tensors& saved, const Tensors& gradients, const std::vector<bool>&) {
                       return recompute_backward(function, differentiable_inputs, saved, gradients);
                     });
}

Tensors boundary(const Tensors& inputs, std::function<void()> on_backward) {
  Tensors passing;
  std::vector<size_t> places;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!is_differentiable(inputs[i])) continue;
    places.push_back(i);
    passing.push_back(inputs[i]);
  }
  if (!needs_gradient(passing, {})) return inputs;
  Tensors passed =
      attach_node("boundary", passing, {}, detached(passing),
                  [on_backward = std::move(on_backward)](const Tensors&, const Tensors& gradients,
                                                         const std::vector<bool>&) {
                    on_backward();
                    return gradients;
                  });
  Tensors outputs = inputs;
  for (size_t i = 0; i < places.size(); ++i) outputs[places[i]] = passed[i];
  return outputs;
}

}  // namespace phalanx
