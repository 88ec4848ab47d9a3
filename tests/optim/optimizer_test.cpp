#include "phalanx/optim/optimizer.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "phalanx/base/error.h"
#include "phalanx/optim/learning_rate.h"

namespace phalanx {
namespace {

// Parameters of several sizes, one empty; the second and last without decay.
struct Case {
  std::vector<OptimizerShard> shards;
  std::vector<at::Tensor> expected;
  explicit Case(at::ScalarType type) {
    for (const int64_t count : {37, 5, 0, 1000, 16})
      shards.push_back({at::randn({count}, type), at::Tensor(), count != 5 && count != 16});
    for (const auto& shard : shards) expected.push_back(shard.values.to(at::kDouble));
  }
  // New gradients; returns them in float64, times `factor`.
  std::vector<at::Tensor> new_gradients(double factor) {
    std::vector<at::Tensor> exact;
    for (auto& shard : shards) {
      shard.gradient = at::randn_like(shard.values);
      exact.push_back(shard.gradient.to(at::kDouble) * factor);
    }
    return exact;
  }
  void compare(double tolerance) const {
    for (size_t i = 0; i < shards.size(); ++i)
      if (shards[i].values.numel())
        EXPECT_LT((shards[i].values.to(at::kDouble) - expected[i]).norm().item<double>(),
                  tolerance * expected[i].norm().item<double>())
            << i;
  }
};

TEST(Optimizer, AdamWFollowsItsFormula) {
  for (const auto type : {at::kDouble, at::kFloat}) {
    Case c(type);
    const OptimizerConfig options{.beta1 = 0.8, .beta2 = 0.9, .epsilon = 1e-6, .weight_decay = 0.3};
    auto optimizer = make_optimizer(options, c.shards);
    std::vector<at::Tensor> m, v;
    for (const auto& x : c.expected) m.push_back(at::zeros_like(x)), v.push_back(at::zeros_like(x));
    for (int t = 1; t <= 5; ++t) {
      const double rate = 0.01 * t, factor = t % 2 ? 1 : 0.37;
      const auto gradients = c.new_gradients(factor);
      optimizer->step(c.shards, rate, factor);
      for (size_t i = 0; i < gradients.size(); ++i) {
        if (c.shards[i].decay) c.expected[i] *= 1 - rate * options.weight_decay;
        m[i] = options.beta1 * m[i] + (1 - options.beta1) * gradients[i];
        v[i] = options.beta2 * v[i] + (1 - options.beta2) * gradients[i] * gradients[i];
        const at::Tensor mean = m[i] / (1 - std::pow(options.beta1, t)),
                         square = v[i] / (1 - std::pow(options.beta2, t));
        c.expected[i] -= rate * mean / (square.sqrt() + options.epsilon);
      }
      c.compare(type == at::kDouble ? 1e-14 : 1e-6);
    }
    EXPECT_EQ(optimizer->steps(), 5);
    const auto state = optimizer->state(3);
    ASSERT_EQ(state.size(), 2u);
    EXPECT_EQ(state[0].role, "exp_avg");
    EXPECT_EQ(state[1].role, "exp_avg_sq");
    EXPECT_TRUE(at::allclose(state[0].tensor.to(at::kDouble), m[3], 1e-5, 1e-7));
    EXPECT_TRUE(at::allclose(state[1].tensor.to(at::kDouble), v[3], 1e-5, 1e-7));
  }
}

TEST(Optimizer, SgdFollowsItsFormula) {
  for (const auto type : {at::kDouble, at::kFloat})
    for (const double momentum : {0.0, 0.9}) {
      Case c(type);
      auto optimizer = make_optimizer(
          {.kind = OptimizerKind::sgd, .momentum = momentum, .weight_decay = 0.3}, c.shards);
      std::vector<at::Tensor> m;
      for (const auto& x : c.expected) m.push_back(at::zeros_like(x));
      for (int t = 1; t <= 4; ++t) {
        const double factor = t % 2 ? 0.37 : 1;
        const auto gradients = c.new_gradients(factor);
        optimizer->step(c.shards, 0.1, factor);
        for (size_t i = 0; i < gradients.size(); ++i) {
          m[i] = momentum * m[i] + gradients[i] + (c.shards[i].decay ? 0.3 : 0) * c.expected[i];
          c.expected[i] -= 0.1 * m[i];
        }
        c.compare(type == at::kDouble ? 1e-14 : 1e-6);
      }
      EXPECT_EQ(optimizer->state(0).size(), momentum == 0 ? 0u : 1u);
    }
}

TEST(Optimizer, GoesOnFromLoadedState) {
  Case c(at::kFloat);
  auto first = make_optimizer({}, c.shards), second = make_optimizer({}, c.shards);
  c.new_gradients(1);
  first->step(c.shards, 0.1);
  std::vector<OptimizerShard> copies = c.shards;
  for (size_t i = 0; i < copies.size(); ++i) {
    copies[i].values = c.shards[i].values.clone();
    for (size_t k = 0; k < 2; ++k) second->state(i)[k].tensor.copy_(first->state(i)[k].tensor);
  }
  second->set_steps(first->steps());
  c.new_gradients(1);
  for (size_t i = 0; i < copies.size(); ++i) copies[i].gradient = c.shards[i].gradient.clone();
  first->step(c.shards, 0.1);
  second->step(copies, 0.1);
  for (size_t i = 0; i < copies.size(); ++i)
    EXPECT_TRUE(at::equal(copies[i].values, c.shards[i].values));
}

TEST(Optimizer, RefusesWhatItCannotUpdate) {
  Case c(at::kFloat);
  auto optimizer = make_optimizer({}, c.shards);
  EXPECT_THROW(optimizer->step(std::span(c.shards).first(2), 0.1), Error);
  const std::vector<OptimizerShard> half = {{at::ones({3}, at::kHalf), at::ones({3}, at::kHalf)}};
  EXPECT_THROW(make_optimizer({}, half), Error);
  EXPECT_EQ(clip_factor(4, 1), 0.25);
  EXPECT_EQ(clip_factor(0.5, 1), 1);
  EXPECT_EQ(clip_factor(4, 0), 1);
}

// Elements near the largest of float32: their norm is beyond it.
TEST(Optimizer, ClipsGradientsWhoseNormIsBeyondFloat32) {
  const int64_t count = 1000;
  const OptimizerConfig options{.kind = OptimizerKind::sgd, .weight_decay = 0, .clip_norm = 1};
  const std::vector<OptimizerShard> shards = {
      {at::zeros({count}, at::kFloat), at::full({count}, 3e38, at::kFloat)}};
  const double factor = clip_factor(3e38 * std::sqrt(double(count)), options.clip_norm);
  make_optimizer(options, shards)->step(shards, 1, factor);
  EXPECT_NEAR(shards[0].values.norm().item<double>(), 1, 1e-5);
}

TEST(LearningRate, WarmsUpAndDecays) {
  LrConfig s{.peak = 2, .minimum = 0.5, .warmup_steps = 4, .decay_steps = 12};
  EXPECT_DOUBLE_EQ(learning_rate(s, 0), 0.5);
  EXPECT_DOUBLE_EQ(learning_rate(s, 3), 2);
  EXPECT_DOUBLE_EQ(learning_rate(s, 4), 2);
  EXPECT_DOUBLE_EQ(learning_rate(s, 8), 1.25);
  EXPECT_DOUBLE_EQ(learning_rate(s, 12), 0.5);
  EXPECT_DOUBLE_EQ(learning_rate(s, 1000), 0.5);
  for (int64_t i = 4; i < 12; ++i) EXPECT_GT(learning_rate(s, i), learning_rate(s, i + 1));
  s.schedule = LrScheduleKind::constant;
  EXPECT_DOUBLE_EQ(learning_rate(s, 1), 1);
  EXPECT_DOUBLE_EQ(learning_rate(s, 1000), 2);
  s.warmup_steps = 0;
  EXPECT_DOUBLE_EQ(learning_rate(s, 0), 2);
}

}  // namespace
}  // namespace phalanx
