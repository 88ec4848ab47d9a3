#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "phalanx/autograd/op.h"
#include "phalanx/shard/unit.h"

namespace phalanx {

/// A unit to be: its name and parameters, in the model's order.
struct UnitParameters {
  std::string name;
  std::vector<Parameter> parameters;
};

/// The units of a model over one data-parallel group, and the loop around them: DDP, ZeRO-1, -2, -3
/// and FSDP by the layout's strategy. Unit 0 is the root: parameters of no block, gathered for the
/// whole of a microbatch.
///
///     for each microbatch:
///       engine.begin_microbatch(last);
///       hidden = ... root ...;
///       hidden = engine.run(i, {hidden}, [&](const Tensors& in) { return block.forward(in); });
///       run_backward(loss);
///       engine.end_microbatch();
///     engine.wait_gradients();
///     ... the optimizer, on shards() ...
///     engine.finish_step();
class DataParallel {
 public:
  /// Collective over `group`. The layout's degrees are not read: `group` is what counts.
  DataParallel(const Layout& layout, Communicator& group, Device& device,
               std::vector<UnitParameters> units, const Initializer& initializer);

  /// Gathers the root. `last`: gradients are complete after this microbatch's backward. Without
  /// grad mode (evaluation) nothing but forward may follow.
  void begin_microbatch(bool last);
  /// Runs one use of a unit: gathered before, released after (if the layout says so), gathered
  /// again before its backward, reduced after it.
  Tensors run(size_t unit, const Tensors& inputs,
              const std::function<Tensors(const Tensors&)>& function);
  /// Releases the root and reduces what has not been reduced.
  void end_microbatch();

  void wait_gradients();
  /// 2-norm of the gradient over all parameters, each element once; the same on all ranks. Between
  /// wait_gradients() and finish_step().
  double gradient_norm();
  void finish_step();

  std::vector<ParameterShard> shards() const;  ///< of all units, in order
  size_t unit_count() const { return units_.size(); }
  Unit& unit(size_t i) { return *units_[i]; }
  Communicator& group() { return group_; }
  const Layout& layout() const { return layout_; }

 private:
  struct Calls {
    int open = 0;     ///< uses in forward whose backward has not ended
    int entered = 0;  ///< of these, backward has begun
    bool ready = false;
  };
  void before_backward(size_t unit);
  void after_backward(size_t unit);
  void gradients_ready(size_t unit);
  void prefetch(size_t from, int direction);

  Layout layout_;
  Communicator& group_;
  std::unique_ptr<GradientRing> ring_;
  std::vector<std::unique_ptr<Unit>> units_;
  std::vector<Calls> calls_;
  bool last_ = true, training_ = false;
};

}  // namespace phalanx
