#include "phalanx/shard/module.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include "phalanx/base/text.h"
#include "phalanx/comm/mesh.h"
#include "tests/support/ranks.h"

namespace phalanx {
namespace {

/// Two blocks, a tied output and a parameter of its own in the root.
struct Net : torch::nn::Module {
  torch::nn::Linear embed{nullptr}, first{nullptr}, second{nullptr};
  at::Tensor bias;
  Net() {
    embed = register_module("embed", torch::nn::Linear(torch::nn::LinearOptions(4, 6).bias(false)));
    first = register_module("first", torch::nn::Linear(6, 6));
    second = register_module("second", torch::nn::Linear(6, 6));
    bias = register_parameter("bias", at::ones({4}));
    to(at::kDouble);
  }
  using Run = std::function<at::Tensor(torch::nn::Linear&, at::Tensor)>;
  at::Tensor loss(const at::Tensor& x, const Run& run) {
    at::Tensor hidden = embed(x);
    hidden = run(first, hidden);
    hidden = run(second, hidden);
    return (at::mm(hidden, embed->weight) + bias - x).pow(2).mean();
  }
};

at::Tensor call(torch::nn::Linear& layer, const at::Tensor& x) { return at::gelu(layer(x)); }

TEST(ShardedModule, GivesTheGradientsOfTheWholeBatchUnderEveryStrategy) {
  for (int ranks : {1, 2, 3})
    testing::run_ranks(ranks, [&](World& world) {
      Mesh mesh(std::shared_ptr<World>(&world, [](World*) {}), {.dp_shard = ranks});
      Communicator& group = mesh.group({Dim::dp_shard});
      auto device = cpu_device();
      for (Strategy strategy :
           {Strategy::none, Strategy::optim, Strategy::optim_grads, Strategy::optim_grads_params})
        for (bool reshard : {true, false}) {
          SCOPED_TRACE(text(name(strategy), " reshard ", reshard));
          at::manual_seed(1);
          auto whole = std::make_shared<Net>();
          at::manual_seed(1 + group.rank());  // rank 0's values count
          auto net = std::make_shared<Net>();
          at::manual_seed(5);
          const at::Tensor x = at::randn({12, 4}, at::kDouble);
          Layout layout;
          layout.strategy = strategy, layout.reshard_after_forward = reshard;
          ShardedModule sharded(*net, {net->first.get(), net->second.get()}, layout, group,
                                *device);
          for (int step = 0; step < 2; ++step) {
            const at::Tensor expected = whole->loss(x, call);
            expected.backward();
            const int64_t rows = 12 / ranks;
            sharded.begin();
            at::Tensor loss = net->loss(
                x.narrow(0, rows * group.rank(), rows),
                [&](torch::nn::Linear& layer, at::Tensor in) {
                  return sharded.run(*layer, {in}, [&](auto& t) { return call(layer, t[0]); });
                });
            sharded.backward(loss);
            for (const auto& shard : sharded.engine().shards()) {
              const std::string name = shard.parameter->spec.name;
              at::Tensor& gradient = whole->named_parameters()[name].mutable_grad();
              const at::Tensor part =
                  gradient.flatten().slice(0, shard.range.begin, shard.range.end);
              if (!shard.range.empty()) {
                EXPECT_LT((shard.gradient - part).norm().item<double>(),
                          1e-12 * (1 + part.norm().item<double>()))
                    << name;
              }
            }
            GradMode no_grad(false);
            for (auto& leaf : sharded.parameters()) leaf.sub_(leaf.grad(), 0.1);
            sharded.finish_step();
            for (auto& parameter : whole->parameters()) {
              parameter.sub_(parameter.grad(), 0.1);
              parameter.mutable_grad().reset();
            }
          }
          sharded.engine().wait_gradients();
          group.barrier({"end", "test"});
        }
    });
}

TEST(ShardedModule, ALossOfWeightZeroGivesNoGradient) {
  testing::run_ranks(2, [](World& world) {
    Mesh mesh(std::shared_ptr<World>(&world, [](World*) {}), {.dp_shard = 2});
    Communicator& group = mesh.group({Dim::dp_shard});
    auto device = cpu_device();
    Net net;
    ShardedModule sharded(net, {net.first.get(), net.second.get()}, {}, group, *device);
    const auto norm_with = [&](std::optional<double> weight) {
      sharded.begin();
      sharded.backward(net.loss(at::ones({3, 4}, at::kDouble),
                                [&](torch::nn::Linear& layer, at::Tensor in) {
                                  return sharded.run(*layer, {in},
                                                     [&](auto& t) { return call(layer, t[0]); });
                                }),
                       weight);
      const double norm = sharded.engine().gradient_norm();
      sharded.finish_step();
      return norm;
    };
    const double norm = norm_with(std::nullopt);
    EXPECT_GT(norm, 0);
    EXPECT_EQ(norm_with(0), 0);
    EXPECT_DOUBLE_EQ(norm_with(0.5), norm);  // 1 / ranks
    sharded.engine().wait_gradients();
    group.barrier({"end", "test"});
  });
}

}  // namespace
}  // namespace phalanx
