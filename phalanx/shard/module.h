#pragma once

#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "phalanx/shard/data_parallel.h"

namespace phalanx {

/// Trains a user's own torch::nn::Module over a data-parallel group, by any strategy. The module is
/// used as before; only the calls of its blocks go through run(), so that their parameters are
/// there when they are needed:
///
///     ShardedModule sharded(*net, {net->first.get(), net->second.get()}, layout, group, *device);
///     torch::optim::AdamW optimizer(sharded.parameters());
///     for (...) {
///       sharded.begin();
///       auto x = sharded.run(*net->first, {input}, [&](auto& in) { return net->first(in[0]); });
///       ...
///       sharded.backward(loss);
///       optimizer.step();
///       sharded.finish_step();
///     }
///
/// Between begin() and backward() every parameter outside the blocks is there; a block's only
/// inside its run(). All ranks start from rank 0's values, those of buffers too; gradients from
/// before are dropped. Tied parameters must share a block, or be in none, else Error(usage). Never
/// call Module::to() afterwards. Optimizers must work element by element. What has requires_grad =
/// false when the module is sharded is frozen: no optimizer sees it.
class ShardedModule {
 public:
  /// `blocks`: submodules of `module` that become a unit each; what they do not hold is the root. A
  /// block inside of another is a unit of its own.
  /// The layout's dtypes follow the module's parameters, which must all have one. Parameters keep
  /// the names of module.named_parameters(); state for checkpoints: module_state.h. Collective.
  ShardedModule(torch::nn::Module& module, std::vector<torch::nn::Module*> blocks, Layout layout,
                Communicator& group, Device& device);

  /// Starts a microbatch. `last`: its backward completes the step's gradients.
  void begin(bool last = true);
  /// One use of a block: `function` gets the inputs and returns the block's output.
  at::Tensor run(const torch::nn::Module& block, const Tensors& inputs,
                 const std::function<at::Tensor(const Tensors&)>& function);
  /// Backward from a scalar loss, weighted; gradients are summed over ranks. The default weight
  /// 1 / ranks fits losses that are means over equally many samples per rank.
  void backward(const at::Tensor& loss, std::optional<double> weight = std::nullopt);
  /// Ends a microbatch that has no backward (evaluation, under NoGradGuard).
  void end();
  /// After the last backward: scales gradients down to a global 2-norm of at most `largest`.
  /// Returns the norm before.
  double clip_gradients(double largest);
  /// The optimizer has stepped.
  void finish_step();

  /// One 1-D leaf per unit, this rank's part of what is trained in it (empty if that is nothing),
  /// with `.grad` set by the last backward: what the optimizer gets.
  std::vector<at::Tensor> parameters() const { return leaves_; }
  DataParallel& engine() { return *engine_; }
  torch::nn::Module& module() { return module_; }

 private:
  torch::nn::Module& module_;
  std::vector<torch::nn::Module*> blocks_;
  std::unique_ptr<DataParallel> engine_;
  std::vector<at::Tensor> leaves_;
  bool last_ = true;
};

}  // namespace phalanx
