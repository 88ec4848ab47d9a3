#include "phalanx/nn/cross_entropy.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/scalar_tensor.h>

#include <vector>

#include "phalanx/kernels/cross_entropy.h"
#include "phalanx/nn/dtype.h"
#include "phalanx/nn/embedding.h"

namespace phalanx {

Loss cross_entropy(const at::Tensor& logits, const at::Tensor& targets, double scale) {
  const int64_t rows = rows_of(logits), classes = logits.size(-1);
  require(targets.numel() == rows && logits.is_contiguous(), ExitCode::usage, "cross entropy of ",
          rows, " rows of logits and ", targets.numel(), " targets: want one contiguous row each");
  check_indices(targets, classes, "target", ignored_target);
  const bool with_gradient = needs_gradient({logits}, {});
  std::vector<double> losses(static_cast<size_t>(rows));
  const int64_t* target = targets.const_data_ptr<int64_t>();
  with_float_type(logits, "cross entropy", [&](auto type) {
    using T = decltype(type);
    // The data pointer, not an operation: nothing else reads the logits, so no version counts.
    T* memory = const_cast<T*>(logits.const_data_ptr<T>());
    kernels::cross_entropy<T>(memory, target, ignored_target, scale, with_gradient, losses.data(),
                              rows, classes);
  });
  Loss loss;
  for (double each : losses) loss.sum += each;
  loss.scaled = differentiable(
      "cross_entropy", {logits}, {}, {logits},
      {at::scalar_tensor(scale * loss.sum, at::TensorOptions().dtype(at::kDouble))},
      [](const Tensors& saved, const Tensors& gradients, const std::vector<bool>&) -> Tensors {
        if (!gradients[0].defined()) return {at::Tensor()};
        const double factor = gradients[0].item<double>();
        return {factor == 1 ? saved[0] : saved[0] * factor};
      })[0];
  return loss;
}

}  // namespace phalanx
