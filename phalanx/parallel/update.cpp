#include "phalanx/parallel/update.h"

#include "phalanx/device/failure.h"
#include "phalanx/optim/learning_rate.h"

namespace phalanx {

ShardedUpdate::ShardedUpdate(const OptimizerConfig& optimizer, const LrConfig& lr,
                             DataParallel& engine)
    : options_(optimizer), lr_(lr) {
  for (const ParameterShard& shard : engine.shards()) {
    if (!shard.parameter->spec.trainable) continue;
    shards_.push_back(shard);
    views_.push_back({shard.values, shard.gradient, shard.parameter->spec.decay});
  }
  int64_t bytes = 0;
  for (const OptimizerShard& view : views_) bytes += static_cast<int64_t>(view.values.nbytes());
  allocate_named(
      text("the state of the optimizer ", name(options_.kind), " for ", bytes,
           " bytes of parameters on this rank, strategy ", name(engine.layout().strategy)),
      [&] { optimizer_ = make_optimizer(options_, views_); });
}

double ShardedUpdate::learning_rate() const { return phalanx::learning_rate(lr_, steps()); }

void ShardedUpdate::step(double norm) {
  optimizer_->step(views_, learning_rate(), clip_factor(norm, options_.clip_norm));
}

std::vector<StateEntry> ShardedUpdate::state() const {
  std::vector<StateEntry> entries;
  for (size_t i = 0; i < shards_.size(); ++i)
    for (const OptimizerState& state : optimizer_->state(i))
      for (StateEntry& entry : shard_entries(shards_[i].parameter->spec, shards_[i].range.begin,
                                             shards_[i].range.end, state.tensor, state.role))
        entries.push_back(std::move(entry));
  return entries;
}

}  // namespace phalanx
