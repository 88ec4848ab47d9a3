#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "phalanx/config/config.h"

namespace phalanx {

/// What an optimizer updates: a parameter or a part of one, flat or not. Both tensors have the same
/// shape and dtype, float32 or float64. Tensors without elements are allowed.
struct OptimizerShard {
  at::Tensor values, gradient;
  bool decay = true;  ///< weight decay applies
};

/// A state tensor of one shard, of the shape of its values, under the name that checkpoints use.
struct OptimizerState {
  std::string role;  ///< "exp_avg", "exp_avg_sq", "momentum"
  at::Tensor tensor;
};

/// One update rule and its state. Shards are named by their index in the list given at
/// construction; step() wants the same list, gradients may be other tensors every time.
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  /// One update in place. Gradients are first multiplied by `gradient_factor` (clipping); they are
  /// not valid afterwards.
  virtual void step(std::span<const OptimizerShard> shards, double learning_rate,
                    double gradient_factor = 1) = 0;
  /// State of shard `index`, to be saved, or loaded in place.
  virtual std::vector<OptimizerState> state(size_t index) const = 0;
  int64_t steps() const { return steps_; }  ///< updates so far
  void set_steps(int64_t steps) { steps_ = steps; }

 protected:
  int64_t steps_ = 0;
};

/// AdamW (Loshchilov and Hutter 2019), as torch.optim.AdamW: decay is decoupled. Or SGD with
/// momentum, as torch.optim.SGD: decay is added to the gradient, no dampening. Clipping is the
/// caller's: clip_factor().
std::unique_ptr<Optimizer> make_optimizer(const OptimizerConfig& options,
                                          std::span<const OptimizerShard> shards);

/// The factor that brings a gradient of 2-norm `norm` to at most `largest`: 1 if it is already, or
/// if `largest` is 0 (no clipping).
double clip_factor(double norm, double largest);

}  // namespace phalanx
