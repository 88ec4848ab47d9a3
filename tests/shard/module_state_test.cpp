// A user's own module and LibTorch's optimizers: saved and loaded, whole and sharded.
#include "phalanx/shard/module_state.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim.h>

#include "phalanx/base/error.h"
#include "phalanx/comm/mesh.h"
#include "tests/support/ranks.h"

namespace phalanx {
namespace {

namespace optim = torch::optim;
using Optimizer = std::unique_ptr<optim::Optimizer>;
using Tensors = std::vector<at::Tensor>;

// Two blocks, a tied output, a parameter of its own and two buffers. The layers can be made in
// another order, and the values be others.
struct Net : torch::nn::Module {
  torch::nn::Linear embed{nullptr}, first{nullptr}, second{nullptr};
  at::Tensor bias, calls, seen;
  explicit Net(int seed, bool reversed = false) {
    at::manual_seed(seed);
    const auto add_second = [&] {
      second = register_module("second", torch::nn::Linear(5, 5));
      bias = register_parameter("bias", at::ones({4}));
    };
    if (reversed) add_second();
    first = register_module("first", torch::nn::Linear(5, 5));
    embed = register_module("embed", torch::nn::Linear(torch::nn::LinearOptions(4, 5).bias(false)));
    if (!reversed) add_second();
    to(at::kDouble);
    calls = register_buffer("calls", at::zeros({}, at::kLong));
    seen = register_buffer("seen", at::zeros({16}, at::kBool));
  }
  using Run = std::function<at::Tensor(torch::nn::Linear&, at::Tensor)>;
  at::Tensor loss(const at::Tensor& x, const Run& run) {
    calls.add_(1);
    seen.select(0, calls.item<int64_t>() % 16).fill_(true);
    at::Tensor hidden = embed(x);
    hidden = run(first, hidden);
    hidden = run(second, hidden);
    return (at::mm(hidden, embed->weight) + bias - x).pow(2).mean();
  }
};

at::Tensor call(torch::nn::Linear& layer, const at::Tensor& x) { return at::gelu(layer(x)); }

at::Tensor batch(int step) {
  at::manual_seed(100 + step);
  return at::randn({12, 4}, at::kDouble);
}

void train(Net& net, optim::Optimizer& optimizer, int from, int to) {
  for (int step = from; step < to; ++step) {
    optimizer.zero_grad();
    net.loss(batch(step), call).backward();
    optimizer.step();
  }
}

const std::vector<std::pair<const char*, std::function<Optimizer(const Tensors&)>>> optimizers = {
    {"adamw", [](auto& p) { return std::make_unique<optim::AdamW>(p, optim::AdamWOptions(0.05)); }},
    {"amsgrad",
     [](auto& p) {
       return std::make_unique<optim::Adam>(p, optim::AdamOptions(0.05).amsgrad(true));
     }},
    {"sgd", [](auto& p) { return std::make_unique<optim::SGD>(p, optim::SGDOptions(0.1)); }},
    {"momentum",
     [](auto& p) {
       return std::make_unique<optim::SGD>(p, optim::SGDOptions(0.1).momentum(0.9).nesterov(true));
     }},
    {"rmsprop",
     [](auto& p) {
       return std::make_unique<optim::RMSprop>(
           p, optim::RMSpropOptions(0.01).momentum(0.9).centered(true));
     }},
    {"adagrad",
     [](auto& p) { return std::make_unique<optim::Adagrad>(p, optim::AdagradOptions(0.1)); }},
};

void expect_equal(const Net& found, const Net& expected, double tolerance) {
  const auto wanted = expected.named_parameters();
  for (const auto& item : found.named_parameters()) {
    const at::Tensor& other = wanted[item.key()];
    EXPECT_LE((item.value() - other).norm().item<double>(), tolerance * other.norm().item<double>())
        << item.key();
  }
  EXPECT_EQ(found.calls.item<int64_t>(), expected.calls.item<int64_t>());
  EXPECT_TRUE(at::equal(found.seen, expected.seen));
}

// Calls `body` and gives the sentence that it ends with.
std::string refusal(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

void expect_contains(const std::string& sentence, const std::string& fragment) {
  EXPECT_NE(sentence.find(fragment), std::string::npos)
      << "no '" << fragment << "' in " << sentence;
}

// Saved before the first step or after some; loaded into a module whose layers were made in another
// order; bit for bit.
TEST(ModuleState, WholeModulesGoOnBitForBitWithEveryOptimizer) {
  const std::string folder = testing::temporary_folder();
  testing::run_ranks(1, [&](World& joined) {
    const auto world = joined.group("world", std::vector<int>{0});
    for (const auto& [label, make] : optimizers)
      for (int saved_after : {0, 3}) {
        SCOPED_TRACE(text(label, " saved after ", saved_after));
        Net straight(1);
        const auto straight_optimizer = make(straight.parameters());
        train(straight, *straight_optimizer, 0, 6);

        Net broken(1);
        const auto first = make(broken.parameters());
        train(broken, *first, 0, saved_after);
        const std::string path = save_checkpoint(*world, folder, {.step = saved_after},
                                                 module_state(broken, first.get()), 1);
        Net resumed(2, true);
        const auto second = make(resumed.parameters());
        EXPECT_EQ(load_module(*world, path, resumed, second.get()).step, saved_after);
        train(resumed, *second, saved_after, 6);
        expect_equal(resumed, straight, 0);
        train(broken, *first, saved_after, 6);  // saving has changed nothing
        expect_equal(broken, straight, 0);
      }
  });
}

struct Sharded {
  Mesh mesh;
  Communicator& group;
  std::unique_ptr<Device> device = cpu_device();
  Net net;
  ShardedModule module;
  Optimizer optimizer;
  int rows;

  Sharded(World& world, Strategy strategy, int seed, bool reversed,
          const std::function<Optimizer(const Tensors&)>& make)
      : mesh(std::shared_ptr<World>(&world, [](World*) {}), {.dp_shard = world.info().size}),
        group(mesh.group({Dim::dp_shard})),
        net(seed, reversed),
        module(net, {net.first.get(), net.second.get()}, Layout{.strategy = strategy}, group,
               *device),
        optimizer(make(module.parameters())),
        rows(12 / group.size()) {}

  void train(int from, int to) {
    for (int step = from; step < to; ++step) {
      module.begin();
      at::Tensor loss =
          net.loss(batch(step).narrow(0, int64_t{rows} * group.rank(), rows),
                   [&](torch::nn::Linear& layer, at::Tensor in) {
                     return module.run(*layer, {in}, [&](auto& t) { return call(layer, t[0]); });
                   });
      module.backward(loss);
      optimizer->step();
      module.finish_step();
    }
  }
  std::string save(const std::string& folder, int step) {
    return save_checkpoint(group, folder, {.step = step}, module_state(module, optimizer.get()), 0);
  }
  // Peers may still read what is about to go.
  void end() {
    module.engine().wait_gradients();
    group.barrier({"end", "test"});
  }
};

// Two ranks save, one, two and three go on, with layers made in another order, and at the end a
// whole module loads what they saved: all as if one rank had trained.
TEST(ModuleState, ShardedModulesGoOnOnOtherRanksAndStrategies) {
  const std::string folder = testing::temporary_folder();
  for (const auto& [label, make] : {optimizers[0], optimizers[3]})
    for (const auto& [saved_as, loaded_as] :
         {std::pair{Strategy::optim_grads_params, Strategy::optim},
          {Strategy::none, Strategy::optim_grads_params}})
      for (int saved_after : {0, 3}) {
        SCOPED_TRACE(
            text(label, ": ", name(saved_as), " into ", name(loaded_as), " after ", saved_after));
        const std::string place = text(folder, "/", label, "-", name(saved_as), "-", saved_after);
        const std::string path = text(place, "/step-", saved_after);
        testing::run_ranks(2, [&, &make = make, saved_as = saved_as](World& world) {
          Sharded sharded(world, saved_as, 1, false, make);
          sharded.train(0, saved_after);
          EXPECT_EQ(sharded.save(place, saved_after), path);
          sharded.end();
        });
        for (int ranks : {1, 3})
          testing::run_ranks(ranks, [&, &make = make, loaded_as = loaded_as](World& world) {
            Sharded sharded(world, loaded_as, 7, true, make);
            EXPECT_EQ(
                load_module(sharded.group, path, sharded.module, sharded.optimizer.get()).step,
                saved_after);
            sharded.train(saved_after, 6);
            const std::string end = sharded.save(text(place, "-", ranks), 6);

            Net straight(1), whole(9);
            const auto reference = make(straight.parameters()), loaded = make(whole.parameters());
            train(straight, *reference, 0, 6);
            load_module(sharded.group, end, whole, loaded.get());
            expect_equal(whole, straight, 1e-10);
            train(straight, *reference, 6, 8);  // the optimizer's state came along
            train(whole, *loaded, 6, 8);
            expect_equal(whole, straight, 1e-10);
            sharded.end();
          });
      }
}

TEST(ModuleState, RefusesWhatItWouldLose) {
  const std::string folder = testing::temporary_folder();
  testing::run_ranks(1, [&](World& world) {
    const auto adamw = optimizers[0].second;
    Sharded sharded(world, Strategy::optim_grads_params, 1, false, adamw);
    Net net(1), other(2);
    optim::LBFGS lbfgs(net.parameters());
    expect_contains(refusal([&] { module_state(net, &lbfgs); }), "this optimizer is not known");
    const auto elsewhere = adamw(other.parameters());
    expect_contains(refusal([&] { module_state(net, elsewhere.get()); }),
                    "the optimizer steps 6 tensors, 0 of them parameters of this module");
    expect_contains(refusal([&] { module_state(sharded.module, elsewhere.get()); }),
                    "0 of them parameters");
    optim::SGD damped(net.parameters(), optim::SGDOptions(0.1).momentum(0.9).dampening(0.5));
    expect_contains(refusal([&] { module_state(net, &damped); }), "save after it");

    // A module that had trained its layers unequally, into blocks that are stepped as one.
    const auto uneven = adamw(net.parameters());
    train(net, *uneven, 0, 1);
    net.first->weight.mutable_grad().reset();
    uneven->step();
    const auto path =
        save_checkpoint(sharded.group, folder, {.step = 1}, module_state(net, uneven.get()), 0);
    expect_contains(
        refusal([&] { load_module(sharded.group, path, sharded.module, sharded.optimizer.get()); }),
        "first.weight had 1 updates and first.bias 2");
    // Without the optimizer its state is unexpected: strict both ways.
    expect_contains(refusal([&] { load_module(sharded.group, path, net); }),
                    "nobody asked for every exp_avg");
    load_module(sharded.group, path, net, nullptr, {.roles = {"parameter", "buffer"}});
    torch::nn::Linear stranger(5, 5);
    expect_contains(refusal([&] {
                      ShardedModule(other, {stranger.get()}, {}, sharded.group, *sharded.device);
                    }),
                    "blocks must be submodules");
    sharded.end();
  });
}

}  // namespace
}  // namespace phalanx
