#pragma once

#include <memory>
#include <vector>

#include "phalanx/checkpoint/state.h"
#include "phalanx/config/config.h"
#include "phalanx/optim/optimizer.h"
#include "phalanx/shard/data_parallel.h"

namespace phalanx {

/// The optimizer of a config on what this rank owns of every trainable parameter: clipping by the
/// global norm, the schedule of the learning rate, the update, and its state for checkpoints.
class ShardedUpdate {
 public:
  ShardedUpdate(const OptimizerConfig& optimizer, const LrConfig& lr, DataParallel& engine);

  /// One update, between engine.wait_gradients() and engine.finish_step(). `norm`: of the whole
  /// gradient, engine.gradient_norm().
  void step(double norm);

  int64_t steps() const { return optimizer_->steps(); }  ///< updates so far
  void set_steps(int64_t steps) { optimizer_->set_steps(steps); }
  double learning_rate() const;  ///< of the next update

  /// Roles "exp_avg", "exp_avg_sq" or "momentum", under the names of the parameters.
  std::vector<StateEntry> state() const;

 private:
  OptimizerConfig options_;
  LrConfig lr_;
  std::vector<ParameterShard> shards_;
  std::vector<OptimizerShard> views_;
  std::unique_ptr<Optimizer> optimizer_;
};

}  // namespace phalanx
