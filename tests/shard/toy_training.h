#pragma once

#include <numeric>

#include "phalanx/base/text.h"
#include "phalanx/comm/world.h"
#include "phalanx/optim/optimizer.h"
#include "tests/shard/toy_model.h"

namespace phalanx::testing {

/// How a toy model is trained in the tests of bytes and memory: float32, blocks large beside their
/// activations.
struct ToyRun {
  Strategy strategy = Strategy::optim_grads_params;
  Reduce reduce = Reduce::every_microbatch;
  bool reshard = true;
  int microbatches = 1, blocks = 4, prefetch = 1;
  int64_t width = 160, inner = 24;  ///< every unit is larger than what an all-reduce sums directly

  std::string name() const {
    return text(phalanx::name(strategy), ", reduce ", phalanx::name(reduce),
                reshard ? "" : ", kept after forward", ", ", microbatches, " microbatches, ",
                blocks, " blocks, prefetch ", prefetch);
  }
  Layout layout() const {
    Layout layout;
    layout.strategy = strategy, layout.reduce = reduce, layout.prefetch = prefetch;
    layout.reshard_after_forward = reshard;
    return layout;
  }
};

/// A toy model under the engine with AdamW.
class ToyTraining {
 public:
  ToyTraining(const ToyRun& run, Communicator& group, Device& device)
      : run_(run),
        model_(run.blocks, at::kFloat, run.width, run.inner),
        engine_(run.layout(), group, device, model_.units(), &fill),
        adamw_(make_optimizer({}, optimizer_shards())) {}

  static void fill(const Parameter&, int64_t, int64_t, const at::Tensor& out) {
    at::Tensor(out).fill_(0.01);
  }

  at::Tensor forward(bool last = true) {
    engine_.begin_microbatch(last);
    // Its gradient makes the root's parameters needed up to the end of backward.
    const at::Tensor x = at::ones({1, 5}, at::kFloat).requires_grad_();
    at::Tensor hidden = matmul(x, model_.in);
    for (size_t i = 0; i < model_.blocks.size(); ++i)
      hidden = engine_.run(i + 1, {hidden}, [&](const Tensors& in) {
        return model_.blocks[i]->forward({in_block ? in_block(in[0]) : in[0]}, {});
      })[0];
    return matmul(hidden, model_.out).sum();
  }

  void backward(const at::Tensor& loss) {
    run_backward({loss}, {at::ones_like(loss)});
    engine_.end_microbatch();
  }

  void step() {
    for (int m = 0; m < run_.microbatches; ++m) backward(forward(m + 1 == run_.microbatches));
    update();
  }

  void update() {
    engine_.wait_gradients();
    adamw_->step(optimizer_shards(), 1e-3);
    engine_.finish_step();
  }

  /// Ends the gathers of the last update.
  void settle() { engine_.wait_gradients(); }

  std::vector<OptimizerShard> optimizer_shards() const {
    std::vector<OptimizerShard> shards;
    for (const auto& shard : engine_.shards())
      shards.push_back({shard.values, shard.gradient, shard.parameter->spec.decay});
    return shards;
  }

  DataParallel& engine() { return engine_; }
  std::function<at::Tensor(const at::Tensor&)> in_block;  ///< on every block's input; null: nothing

  /// Elements with padding: of the root, and of all blocks.
  int64_t root_elements() { return engine_.unit(0).plan().padded; }
  int64_t block_elements() {
    int64_t total = 0;
    for (size_t i = 1; i < engine_.unit_count(); ++i) total += engine_.unit(i).plan().padded;
    return total;
  }

 private:
  ToyRun run_;
  ToyModel model_;
  DataParallel engine_;
  std::unique_ptr<Optimizer> adamw_;
};

/// A group of all ranks, with a name of its own each time.
inline std::unique_ptr<Communicator> everyone(World& world) {
  static int serial = 0;
  std::vector<int> ranks(world.info().size);
  std::iota(ranks.begin(), ranks.end(), 0);
  return world.group(text("data", serial++), ranks);
}

}  // namespace phalanx::testing
