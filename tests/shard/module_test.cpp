#include "phalanx/shard/module.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include "phalanx/base/error.h"
#include "phalanx/comm/mesh.h"
#include "tests/support/ranks.h"
#include "tests/support/sentence.h"

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

// What the ranks of a group compute with a sharded module, against the whole module here.
struct Pair {
  Communicator& group;
  std::shared_ptr<Net> whole, net;
  std::unique_ptr<ShardedModule> sharded;

  Pair(Communicator& group, Device& device, const Layout& layout) : group(group) {
    at::manual_seed(1);
    whole = std::make_shared<Net>();
    at::manual_seed(1 + group.rank());  // rank 0's values count
    net = std::make_shared<Net>();
    sharded = std::make_unique<ShardedModule>(
        *net, std::vector<torch::nn::Module*>{net->first.get(), net->second.get()}, layout, group,
        device);
  }

  at::Tensor loss(const at::Tensor& x) {
    return net->loss(x, [&](torch::nn::Linear& layer, at::Tensor in) {
      return sharded->run(*layer, {in}, [&](auto& t) { return call(layer, t[0]); });
    });
  }

  // The rows in `microbatches` parts on every rank.
  void backward(const at::Tensor& x, int microbatches) {
    whole->loss(x, call).backward();
    const int64_t parts = group.size() * microbatches, rows = x.size(0) / parts;
    for (int i = 0; i < microbatches; ++i) {
      sharded->begin(i + 1 == microbatches);
      const int64_t first = rows * (group.rank() * microbatches + i);
      sharded->backward(loss(x.narrow(0, first, rows)), 1.0 / double(parts));
    }
    for (const auto& shard : sharded->engine().shards()) {
      if (shard.range.empty()) continue;
      const std::string name = shard.parameter->spec.name;
      const at::Tensor part = whole->named_parameters()[name].grad().flatten().slice(
          0, shard.range.begin, shard.range.end);
      EXPECT_LT((shard.gradient - part).norm().item<double>(),
                1e-12 * (1 + part.norm().item<double>()))
          << name;
    }
  }

  void update() {
    GradMode no_grad(false);
    for (auto& leaf : sharded->parameters()) leaf.sub_(leaf.grad(), 0.1);
    sharded->finish_step();
    for (auto& parameter : whole->parameters()) {
      parameter.sub_(parameter.grad(), 0.1);
      parameter.mutable_grad().reset();
    }
  }

  void evaluate(const at::Tensor& x) {
    GradMode no_grad(false);
    sharded->begin();
    const double found = loss(x).item<double>(), expected = whole->loss(x, call).item<double>();
    sharded->end();
    EXPECT_NEAR(found, expected, 1e-11 * expected);
  }
};

// Gradients of one and of two microbatches, and an evaluation before, between and after the steps.
void compare_strategies(World& world) {
  Mesh mesh(std::shared_ptr<World>(&world, [](World*) {}), {.dp_shard = world.info().size});
  Communicator& group = mesh.group({Dim::dp_shard});
  auto device = cpu_device();
  for (Strategy strategy :
       {Strategy::none, Strategy::optim, Strategy::optim_grads, Strategy::optim_grads_params})
    for (bool reshard : {true, false})
      for (int microbatches : {1, 2}) {
        SCOPED_TRACE(text(name(strategy), " reshard ", reshard, " microbatches ", microbatches));
        Layout layout;
        layout.strategy = strategy, layout.reshard_after_forward = reshard;
        Pair pair(group, *device, layout);
        at::manual_seed(5);
        const at::Tensor x = at::randn({12, 4}, at::kDouble);
        for (int step = 0; step < 2; ++step) {
          pair.evaluate(x);
          pair.backward(x, microbatches);
          pair.update();
        }
        pair.evaluate(x);
        pair.sharded->engine().wait_gradients();
        group.barrier({"end", "test"});
      }
}

TEST(ShardedModule, GivesTheGradientsOfTheWholeBatchUnderEveryStrategy) {
  for (auto transport : {Transport::shared_memory, Transport::gloo})
    for (int ranks : {1, 2, 3})
      testing::run_ranks(ranks, compare_strategies, {.transport = transport});
}

void with_group(int ranks, const std::function<void(Communicator&, Device&)>& body) {
  testing::run_ranks(ranks, [&](World& world) {
    Mesh mesh(std::shared_ptr<World>(&world, [](World*) {}), {.dp_shard = ranks});
    Communicator& group = mesh.group({Dim::dp_shard});
    auto device = cpu_device();
    body(group, *device);
    group.barrier({"end", "test"});
  });
}

TEST(ShardedModule, GradientsFromBeforeAreOfNoStep) {
  with_group(2, [](Communicator& group, Device& device) {
    Net net;
    const at::Tensor x = at::ones({12, 4}, at::kDouble);
    net.loss(x, call).backward();
    ShardedModule sharded(net, {net.first.get(), net.second.get()}, {}, group, device);
    for (const auto& parameter : net.parameters()) EXPECT_FALSE(parameter.grad().defined());
  });
}

struct Buffers : torch::nn::Module {
  at::Tensor weight, mean, count, mask;
  explicit Buffers(int rank) {
    weight = register_parameter("weight", at::ones({4}));
    mean = register_buffer("mean", at::full({2, 3}, rank + 0.5, at::kDouble).t());
    count = register_buffer("count", at::full({}, rank + 7, at::kLong));
    mask = register_buffer("mask", at::full({3}, rank > 0, at::kBool));
  }
};

TEST(ShardedModule, BuffersStartFromRankZerosToo) {
  with_group(3, [](Communicator& group, Device& device) {
    Buffers net(group.rank());
    const at::Tensor mean = net.mean;
    ShardedModule sharded(net, {}, {}, group, device);
    EXPECT_TRUE(at::equal(mean, at::full({3, 2}, 0.5, at::kDouble)));
    EXPECT_EQ(net.count.item<int64_t>(), 7);
    EXPECT_FALSE(net.mask.any().item<bool>());
    sharded.engine().wait_gradients();
  });
}

TEST(ShardedModule, ATiedParameterOfTwoUnitsIsRefused) {
  const auto refusal = [](Communicator& group, Device& device, Net& net) -> std::string {
    try {
      ShardedModule sharded(net, {net.first.get(), net.second.get()}, {}, group, device);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::usage);
      return error.what();
    }
    return "no error";
  };
  with_group(1, [&](Communicator& group, Device& device) {
    Net blocks, root;
    blocks.second->weight = blocks.second->register_parameter("tied", blocks.first->weight);
    testing::expect_contains(refusal(group, device, blocks),
                             {"parameter first.weight is in block 0 and in block 1"});
    root.register_parameter("tied", root.second->weight);
    testing::expect_contains(refusal(group, device, root),
                             {"is in block 1 and in root", "must share a block, or be in none"});
  });
}

struct Outer : torch::nn::Module {
  torch::nn::Linear inner{nullptr}, own{nullptr};
  Outer() {
    inner = register_module("inner", torch::nn::Linear(2, 2));
    own = register_module("own", torch::nn::Linear(2, 2));
  }
};

struct Nested : torch::nn::Module {
  std::shared_ptr<Outer> outer;
  Nested() {
    register_parameter("bias", at::ones({2}));
    outer = register_module("outer", std::make_shared<Outer>());
  }
};

TEST(ShardedModule, ABlockInsideOfAnotherIsAUnitOfItsOwnInAnyOrder) {
  with_group(1, [](Communicator& group, Device& device) {
    for (bool outer_first : {true, false}) {
      SCOPED_TRACE(outer_first);
      Nested net;
      std::vector<torch::nn::Module*> blocks = {net.outer.get(), net.outer->inner.get()};
      if (!outer_first) std::swap(blocks[0], blocks[1]);
      ShardedModule sharded(net, blocks, {}, group, device);
      EXPECT_EQ(sharded.engine().unit(0).parameters().size(), 1u);
      for (size_t i : {1, 2}) {
        const auto parameters = sharded.engine().unit(i).parameters();
        ASSERT_EQ(parameters.size(), 2u);
        EXPECT_EQ(parameters[0]->spec.name,
                  (i == 1) == outer_first ? "outer.own.weight" : "outer.inner.weight");
      }
      sharded.engine().wait_gradients();
    }
  });
}

TEST(ShardedModule, RefusesACutThatIsNotAvailable) {
  with_group(1, [](Communicator& group, Device& device) {
    Net net;
    try {
      ShardedModule sharded(net, {}, Layout{.cut = Cut::per_parameter}, group, device);
      ADD_FAILURE() << "it would have been cut flat";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::usage);
      testing::expect_contains(error.what(), {"parallel.cut = per_parameter", "use flat"});
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
