#include "phalanx/optim/optimizer.h"

#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>
#include <limits>
#include <optional>

#include "phalanx/autograd/op.h"
#include "phalanx/base/error.h"

namespace phalanx {
namespace {

using State = std::vector<at::Tensor>;  // one per shard

State zeros_of(std::span<const OptimizerShard> shards) {
  State state;
  for (const OptimizerShard& shard : shards) {
    const auto type = shard.values.scalar_type();
    require(type == at::kFloat || type == at::kDouble, ExitCode::usage, "an optimizer on ", type,
            " values is not available; use float32 or float64 masters");
    state.push_back(at::zeros_like(shard.values));
  }
  return state;
}

void check_count(size_t given, size_t known) {
  require(given == known, ExitCode::usage, "the optimizer was made for ", known, " shards and got ",
          given);
}

// The shards that one call of a fused kernel takes: of one dtype, with or without decay.
struct Group {
  std::vector<size_t> members;
  State values, gradients;
  State pick(const State& state) const {
    State picked;
    for (size_t i : members) picked.push_back(state[i]);
    return picked;
  }
};

Group group_of(std::span<const OptimizerShard> shards, bool decay, at::ScalarType type) {
  Group group;
  for (size_t i = 0; i < shards.size(); ++i) {
    const OptimizerShard& shard = shards[i];
    if (shard.decay != decay || shard.values.scalar_type() != type || shard.values.numel() == 0)
      continue;
    group.members.push_back(i);
    group.values.push_back(shard.values);
    group.gradients.push_back(shard.gradient);
  }
  return group;
}

// The kernels divide gradients by a float32 tensor in the same pass. That is exact enough for
// float32 only; float64 gradients pay for a pass of their own. So do those of a norm beyond
// float32, whose factor is none of its normal numbers: half of it (in the exponent), twice.
std::optional<at::Tensor> apply_factor(const Group& group, double factor, at::ScalarType type) {
  if (factor == 1) return std::nullopt;
  const bool narrow = type == at::kFloat;
  if (narrow && 1 / factor <= std::numeric_limits<float>::max())
    return at::full({1}, 1 / factor, at::TensorOptions().dtype(at::kFloat));
  for (const at::Tensor& gradient : group.gradients) {
    gradient.mul_(narrow ? std::sqrt(factor) : factor);
    if (narrow) gradient.mul_(std::sqrt(factor));
  }
  return std::nullopt;
}

template <class Update>
void for_groups(std::span<const OptimizerShard> shards, double factor, double weight_decay,
                const Update& update) {
  BelowAutograd below;
  for (at::ScalarType type : {at::kFloat, at::kDouble})
    for (bool decay : {true, false}) {
      const Group group = group_of(shards, decay, type);
      if (group.members.empty()) continue;
      update(group, apply_factor(group, factor, type), decay ? weight_decay : 0.0);
    }
}

class AdamW final : public Optimizer {
 public:
  AdamW(const OptimizerConfig& options, std::span<const OptimizerShard> shards)
      : options_(options), average_(zeros_of(shards)), square_(zeros_of(shards)) {}

  void step(std::span<const OptimizerShard> shards, double learning_rate,
            double gradient_factor) override {
    check_count(shards.size(), average_.size());
    ++steps_;
    for_groups(shards, gradient_factor, options_.weight_decay,
               [&](const Group& group, const std::optional<at::Tensor>& divisor, double decay) {
                 const at::Tensor step =
                     at::full({}, double(steps_), at::TensorOptions().dtype(at::kFloat));
                 const State steps(group.members.size(), step);
                 at::_fused_adamw_(group.values, group.gradients, group.pick(average_),
                                   group.pick(square_), {}, steps, learning_rate, options_.beta1,
                                   options_.beta2, decay, options_.epsilon, false, false, divisor);
               });
  }

  std::vector<OptimizerState> state(size_t index) const override {
    return {{"exp_avg", average_.at(index)}, {"exp_avg_sq", square_.at(index)}};
  }

 private:
  OptimizerConfig options_;
  State average_, square_;
};

class Sgd final : public Optimizer {
 public:
  Sgd(const OptimizerConfig& options, std::span<const OptimizerShard> shards)
      : options_(options), shards_(shards.size()) {
    if (options.momentum != 0) momentum_ = zeros_of(shards);
  }

  void step(std::span<const OptimizerShard> shards, double learning_rate,
            double gradient_factor) override {
    check_count(shards.size(), shards_);
    ++steps_;
    for_groups(shards, gradient_factor, options_.weight_decay,
               [&](const Group& group, const std::optional<at::Tensor>& divisor, double decay) {
                 const State momentum = momentum_.empty() ? State() : group.pick(momentum_);
                 at::_fused_sgd_(group.values, group.gradients, momentum, decay, options_.momentum,
                                 learning_rate, 0.0, false, false, false, divisor);
               });
  }

  std::vector<OptimizerState> state(size_t index) const override {
    if (momentum_.empty()) return {};
    return {{"momentum", momentum_.at(index)}};
  }

 private:
  OptimizerConfig options_;
  size_t shards_;
  State momentum_;
};

}  // namespace

std::unique_ptr<Optimizer> make_optimizer(const OptimizerConfig& options,
                                          std::span<const OptimizerShard> shards) {
  if (options.kind == OptimizerKind::sgd) return std::make_unique<Sgd>(options, shards);
  return std::make_unique<AdamW>(options, shards);
}

double clip_factor(double norm, double largest) {
  return largest > 0 && norm > largest ? largest / norm : 1;
}

}  // namespace phalanx
