#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "phalanx/autograd/block.h"
#include "phalanx/autograd/deferred.h"
#include "phalanx/autograd/storage.h"
#include "phalanx/base/text.h"

namespace phalanx {

inline Parameter parameter_of(const std::string& name, const at::Tensor& values) {
  Parameter parameter = make_parameter(
      whole_parameter(name, name, values.sizes().vec(), Kind::weight, {}), values.scalar_type());
  attach_storage(parameter->tensor, values.clone());
  return parameter;
}

inline void expect_close(const at::Tensor& ours, const at::Tensor& expected, double tolerance) {
  ASSERT_EQ(ours.defined(), expected.defined());
  if (!ours.defined()) return;
  ASSERT_EQ(ours.sizes(), expected.sizes());
  const double scale = std::max(1e-3, expected.to(at::kDouble).norm().item<double>());
  EXPECT_LT((ours.to(at::kDouble) - expected.to(at::kDouble)).norm().item<double>(),
            tolerance * scale);
}

/// One operation against LibTorch's own autograd.
struct OperationCase {
  Tensors inputs;      ///< differentiable
  Tensors parameters;  ///< values
  std::function<Tensors(const Tensors& inputs, const std::vector<Parameter>& parameters)> ours;
  std::function<Tensors(const Tensors& inputs, const Tensors& parameters)> expected;
};

enum class Mode { plain, deferred, recomputed };

/// Compares outputs and all gradients, in every mode and with two contributions to each parameter.
inline void check_operation(const OperationCase& operation, double tolerance = 1e-11) {
  Tensors inputs, parameters, output_gradients;
  for (const auto& x : operation.inputs) inputs.push_back(x.clone().requires_grad_());
  for (const auto& w : operation.parameters) parameters.push_back(w.clone().requires_grad_());
  const Tensors expected = operation.expected(inputs, parameters);
  for (const auto& y : expected) output_gradients.push_back(at::randn(y.sizes(), y.options()));
  run_backward(expected, output_gradients);

  for (const Mode mode : {Mode::plain, Mode::deferred, Mode::recomputed}) {
    SCOPED_TRACE(static_cast<int>(mode));
    Tensors ours;
    std::vector<Parameter> mine;
    for (const auto& x : operation.inputs) ours.push_back(x.clone().requires_grad_());
    for (const auto& w : operation.parameters) mine.push_back(parameter_of("w", w));
    for (int contribution = 1; contribution <= 2; ++contribution) {
      auto function = [&](const Tensors& in) { return operation.ours(in, mine); };
      const Tensors outputs = mode == Mode::recomputed ? recompute(ours, function) : function(ours);
      ASSERT_EQ(outputs.size(), expected.size());
      for (size_t i = 0; i < outputs.size(); ++i) {
        SCOPED_TRACE(text("output ", i));
        expect_close(outputs[i].detach(), expected[i].detach(), tolerance);
      }
      DeferredGradients queue;
      if (mode == Mode::deferred) {
        {
          DeferredGradients::Scope scope(queue);
          run_backward(outputs, output_gradients);
        }
        if (contribution == 1)
          for (const auto& w : mine) EXPECT_FALSE(w->tensor.grad().defined());
        queue.run();
      } else {
        run_backward(outputs, output_gradients);
      }
      for (size_t i = 0; i < mine.size(); ++i) {
        SCOPED_TRACE(text("parameter ", i));
        expect_close(mine[i]->tensor.grad(), parameters[i].grad() * contribution, tolerance);
      }
      for (size_t i = 0; i < ours.size(); ++i) {
        SCOPED_TRACE(text("input ", i));
        expect_close(ours[i].grad(), inputs[i].grad() * contribution, tolerance);
      }
    }
  }
}

}  // namespace phalanx
