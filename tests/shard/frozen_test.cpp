// Parameters that are not trained: inside of a unit, in the root, and whole units of them.
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim.h>

#include "phalanx/base/text.h"
#include "phalanx/comm/mesh.h"
#include "phalanx/shard/module_state.h"
#include "tests/support/ranks.h"

namespace phalanx {
namespace {

namespace optim = torch::optim;
using Optimizer = std::unique_ptr<optim::Optimizer>;
using MakeOptimizer = std::function<Optimizer(const std::vector<at::Tensor>&)>;

struct Pair : torch::nn::Module {
  torch::nn::Linear in{nullptr}, out{nullptr};
  Pair() {
    in = register_module("in", torch::nn::Linear(5, 7));
    out = register_module("out", torch::nn::Linear(7, 5));
  }
  at::Tensor forward(const at::Tensor& x) { return x + out(at::gelu(in(x))); }
};

// `mixed` begins with a frozen layer, all of `frozen` is, and so is the root's `bias`.
struct Net : torch::nn::Module {
  std::shared_ptr<Pair> mixed, frozen, trained;
  at::Tensor bias, scale;
  explicit Net(int seed) {
    at::manual_seed(seed);
    bias = register_parameter("bias", at::randn({5}));
    scale = register_parameter("scale", at::randn({5}));
    mixed = register_module("mixed", std::make_shared<Pair>());
    frozen = register_module("frozen", std::make_shared<Pair>());
    trained = register_module("trained", std::make_shared<Pair>());
    to(at::kDouble);
    for (auto& parameter : frozen->parameters()) parameter.set_requires_grad(false);
    for (auto& parameter : mixed->in->parameters()) parameter.set_requires_grad(false);
    bias.set_requires_grad(false);
  }
  using Run = std::function<at::Tensor(Pair&, const at::Tensor&)>;
  at::Tensor loss(const at::Tensor& x, const Run& run) {
    return (run(*trained, run(*frozen, run(*mixed, x * scale + bias))) - x).pow(2).mean();
  }
};

constexpr double largest_norm = 0.05;  // so that every step is clipped

at::Tensor batch(int step) {
  at::manual_seed(100 + step);
  return at::randn({12, 5}, at::kDouble);
}

// LibTorch alone.
void train(Net& net, optim::Optimizer& optimizer, int from, int to) {
  for (int step = from; step < to; ++step) {
    optimizer.zero_grad();
    net.loss(batch(step), [](Pair& pair, const at::Tensor& x) { return pair.forward(x); })
        .backward();
    double squares = 0;
    for (const auto& parameter : net.parameters())
      if (parameter.grad().defined()) squares += parameter.grad().pow(2).sum().item<double>();
    ASSERT_GT(std::sqrt(squares), largest_norm);
    for (const auto& parameter : net.parameters())
      if (parameter.grad().defined()) parameter.grad().mul_(largest_norm / std::sqrt(squares));
    optimizer.step();
  }
}

// The same as this rank of a sharded module.
struct Sharded {
  Mesh mesh;
  Communicator& group;
  std::unique_ptr<Device> device = cpu_device();
  Net net;
  ShardedModule module;
  Optimizer optimizer;

  Sharded(World& world, Strategy strategy, int seed, const MakeOptimizer& make)
      : mesh(std::shared_ptr<World>(&world, [](World*) {}), {.dp_shard = world.info().size}),
        group(mesh.group({Dim::dp_shard})),
        net(seed),
        module(net, {net.mixed.get(), net.frozen.get(), net.trained.get()},
               Layout{.strategy = strategy}, group, *device),
        optimizer(make(module.parameters())) {}

  void train(int from, int to) {
    const int64_t rows = 12 / group.size();
    for (int step = from; step < to; ++step) {
      module.begin();
      module.backward(net.loss(
          batch(step).narrow(0, rows * group.rank(), rows), [&](Pair& pair, const at::Tensor& x) {
            return module.run(pair, {x}, [&](const Tensors& in) { return pair.forward(in[0]); });
          }));
      module.clip_gradients(largest_norm);
      optimizer->step();
      module.finish_step();
    }
  }
  // This rank's parts of all parameters.
  void expect_equal(const Net& expected) {
    const auto parameters = expected.named_parameters();
    for (const ParameterShard& shard : module.engine().shards()) {
      const at::Tensor& whole = parameters[shard.parameter->spec.name];
      const at::Tensor part = whole.detach().flatten().slice(0, shard.range.begin, shard.range.end);
      if (shard.range.empty()) continue;
      EXPECT_LE((shard.values - part).norm().item<double>(),
                whole.requires_grad() ? 1e-10 * whole.norm().item<double>() : 0.0)
          << shard.parameter->spec.name;
    }
  }
  // Peers may still read what is about to go.
  void end() {
    module.engine().wait_gradients();
    group.barrier({"end", "test"});
  }
};

Optimizer adamw(const std::vector<at::Tensor>& parameters) {
  return std::make_unique<optim::AdamW>(parameters, optim::AdamWOptions(0.05).weight_decay(0.5));
}
Optimizer adagrad(const std::vector<at::Tensor>& parameters) {
  return std::make_unique<optim::Adagrad>(parameters,
                                          optim::AdagradOptions(0.05).weight_decay(0.5));
}
Optimizer momentum(const std::vector<at::Tensor>& parameters) {
  return std::make_unique<optim::SGD>(parameters,
                                      optim::SGDOptions(0.05).momentum(0.9).weight_decay(0.5));
}

TEST(FrozenParameters, KeepTheirValuesAndTheOthersAreLibTorchs) {
  for (int ranks : {1, 2, 3})
    testing::run_ranks(ranks, [&](World& world) {
      for (Strategy strategy :
           {Strategy::none, Strategy::optim, Strategy::optim_grads, Strategy::optim_grads_params})
        for (const auto& make : {adamw, momentum}) {
          SCOPED_TRACE(text(name(strategy), make == adamw ? " adamw on " : " sgd on ", ranks));
          Net whole(1), initial(1);
          const auto reference = make(whole.parameters());
          train(whole, *reference, 0, 4);
          EXPECT_TRUE(at::equal(whole.bias, initial.bias));
          EXPECT_FALSE(at::equal(whole.scale, initial.scale));
          Sharded sharded(world, strategy, 1, make);
          sharded.train(0, 4);
          sharded.expect_equal(whole);
          sharded.end();
        }
    });
}

// Saved by two ranks, and by LibTorch's module; loaded by one, three and by LibTorch's module.
TEST(FrozenParameters, CheckpointsHoldThemInEveryLayout) {
  const std::string folder = testing::temporary_folder();
  for (const auto& make : {adamw, adagrad, momentum}) {
    const std::string place = text(folder, "/", make == adamw ? 0 : make == adagrad ? 1 : 2);
    std::vector<std::string> saved = {place + "-sharded/step-2", place + "-whole/step-2"};
    testing::run_ranks(2, [&](World& world) {
      Sharded sharded(world, Strategy::optim_grads_params, 1, make);
      sharded.train(0, 2);
      save_checkpoint(sharded.group, place + "-sharded", {.step = 2},
                      module_state(sharded.module, sharded.optimizer.get()), 0);
      sharded.end();
    });
    testing::run_ranks(1, [&](World& world) {
      const auto alone = world.group("world", std::vector<int>{0});
      Net whole(1);
      const auto optimizer = make(whole.parameters());
      train(whole, *optimizer, 0, 2);
      save_checkpoint(*alone, place + "-whole", {.step = 2}, module_state(whole, optimizer.get()),
                      0);
    });
    for (const std::string& path : saved)
      for (int ranks : {1, 3})
        testing::run_ranks(ranks, [&](World& world) {
          SCOPED_TRACE(text(path, " on ", ranks));
          Net straight(1);
          const auto reference = make(straight.parameters());
          train(straight, *reference, 0, 4);
          Sharded sharded(world, Strategy::optim, 7, make);
          load_module(sharded.group, path, sharded.module, sharded.optimizer.get());
          sharded.train(2, 4);
          sharded.expect_equal(straight);
          Net loaded(9);
          const auto optimizer = make(loaded.parameters());
          load_module(sharded.group, path, loaded, optimizer.get());
          train(loaded, *optimizer, 2, 4);
          for (const auto& item : straight.named_parameters())
            EXPECT_LE((loaded.named_parameters()[item.key()] - item.value()).norm().item<double>(),
                      1e-10 * item.value().norm().item<double>())
                << item.key();
          sharded.end();
        });
  }
}

}  // namespace
}  // namespace phalanx
