#include "phalanx/autograd/op.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>

#include "phalanx/autograd/block.h"

namespace phalanx {
namespace {

namespace ag = torch::autograd;

/// One of our operations in LibTorch's graph.
struct OpNode : ag::Node {
  std::string op_name;
  std::vector<ag::SavedVariable> saved;
  Backward backward;

  std::string name() const override { return op_name; }

  void release_variables() override {
    saved.clear();
    backward = nullptr;
  }

  ag::variable_list apply(ag::variable_list&& gradients) override {
    TORCH_CHECK(backward, op_name, ": its graph was already used by a backward");
    Tensors tensors;
    tensors.reserve(saved.size());
    for (auto& variable : saved) tensors.push_back(variable.unpack());
    std::vector<bool> needs(num_outputs());
    for (size_t i = 0; i < needs.size(); ++i) needs[i] = task_should_compute_output(i);
    return backward(tensors, gradients, needs);
  }
};

// Nodes were held by std::shared_ptr up to LibTorch 2.11 or 2.12, by intrusive_ptr since.
using NodePointer = std::decay_t<decltype(std::declval<const at::Tensor&>().grad_fn())>;

template <class Pointer>
auto make_node() {
  if constexpr (std::is_same_v<Pointer, std::shared_ptr<ag::Node>>)
    return std::shared_ptr<OpNode>(new OpNode(), [](auto* node) { deleteNode(node); });
  else
    return c10::make_intrusive<OpNode>();
}

}  // namespace

bool needs_gradient(const Tensors& inputs, std::initializer_list<Parameter> parameters) {
  if (!at::GradMode::is_enabled()) return false;
  for (const auto& parameter : parameters)
    if (parameter && parameter->spec.trainable) return true;
  for (const auto& input : inputs)
    if (input.defined() && input.requires_grad()) return true;
  return false;
}

Tensors attach_node(std::string_view name, const Tensors& inputs, Tensors saved, Tensors outputs,
                    Backward backward) {
  auto node = make_node<NodePointer>();
  node->op_name = name;
  node->backward = std::move(backward);
  node->set_next_edges(ag::collect_next_edges(inputs));
  node->saved.reserve(saved.size());
  // Detached: an output among them would keep its own node alive for ever, an input its history.
  for (const auto& tensor : saved)
    node->saved.emplace_back(tensor.defined() ? tensor.detach() : tensor, /*is_output=*/false);
  for (auto& output : outputs) {
    if (output.defined() && at::isFloatingType(output.scalar_type()))
      ag::create_gradient_edge(output, node);
    else
      node->add_input_metadata(ag::Node::undefined_input());
  }
  return outputs;
}

Tensors differentiable(std::string_view name, const Tensors& inputs,
                       std::initializer_list<Parameter> parameters, Tensors saved, Tensors outputs,
                       Backward backward) {
  if (!needs_gradient(inputs, parameters)) return outputs;
  return attach_node(name, inputs, std::move(saved), std::move(outputs), std::move(backward));
}

struct BelowAutograd::Guards {
  at::AutoDispatchBelowADInplaceOrView below;
};

BelowAutograd::BelowAutograd() : guards_(std::make_unique<Guards>()) {}
BelowAutograd::~BelowAutograd() = default;

GradMode::GradMode(bool enabled) : before_(at::GradMode::is_enabled()) {
  at::GradMode::set_enabled(enabled);
}

GradMode::~GradMode() { at::GradMode::set_enabled(before_); }

void run_backward(const Tensors& outputs, const Tensors& gradients) {
  ag::backward(outputs, gradients);
}

}  // namespace phalanx
