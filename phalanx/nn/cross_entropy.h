#pragma once

#include "phalanx/autograd/op.h"

namespace phalanx {

/// The target of a token that does not count.
constexpr int64_t ignored_target = -1;

/// The loss of some tokens. Sums, never means: the number of counted tokens of a step is known
/// before its first backward, and `scale` divides by it (docs/design.md, section 3).
struct Loss {
  at::Tensor scaled;  ///< scale x sum, float64, no dimensions: run backward from it with 1
  double sum = 0;     ///< negative log-likelihood in nats, summed over counted tokens
};

/// Softmax cross entropy of logits [..., classes] and targets [...] (int64, `ignored_target` where
/// nothing counts). Consumes the logits: their memory becomes the gradient's. Throws Error(data)
/// for a target outside the classes.
Loss cross_entropy(const at::Tensor& logits, const at::Tensor& targets, double scale);

}  // namespace phalanx
