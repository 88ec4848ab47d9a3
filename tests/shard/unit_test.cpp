#include "phalanx/shard/unit.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "phalanx/autograd/deferred.h"
#include "phalanx/base/text.h"
#include "phalanx/comm/mesh.h"
#include "phalanx/device/recording.h"
#include "tests/shard/toy_model.h"
#include "tests/support/ranks.h"
#include "tests/support/wrong_reduction.h"

namespace phalanx {
namespace {

using testing::ToyModel;

constexpr int64_t kRows = 12;

struct Batch {
  at::Tensor x, target;
};

Batch batch(int step, at::ScalarType type = at::kDouble) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(100 + step);
  const auto options = at::TensorOptions().dtype(at::kDouble);
  at::Tensor x = at::randn({kRows, 5}, generator, options);
  return {x.to(type), at::randn({kRows, 3}, generator, options).to(type)};
}

// Sum over rows, divided by the global count through the gradient's seed.
at::Tensor loss_of(const at::Tensor& out, const at::Tensor& target) {
  return (out - target).pow(2).sum();
}

/// How a case runs.
struct Case {
  Strategy strategy = Strategy::optim_grads_params;
  bool split = false, recompute = false, boundaries = true, reshard = true;
  Reduce reduce = Reduce::every_microbatch;
  int microbatches = 1, blocks = 1, prefetch = 1;
  int rounds = 1;  ///< times that the chain of blocks is run through: uses of every block
  std::string name() const {
    return text(phalanx::name(strategy), split ? " split" : " whole", recompute ? " recompute" : "",
                boundaries ? " boundaries" : " explicit", reshard ? "" : " kept",
                reduce == Reduce::step ? " reduce at step" : "", " ", microbatches,
                " microbatches ", blocks, " blocks ", rounds, " rounds prefetch ", prefetch);
  }
};

struct Result {
  double loss;
  std::vector<at::Tensor> gradients, values;  ///< of every parameter, whole
};

constexpr double kRate = 0.05;
constexpr int kSteps = 2;

/// One rank, whole batches, no engine.
std::vector<Result> reference(int block_count, int rounds = 1, at::ScalarType type = at::kDouble) {
  ToyModel model(block_count, type);
  model.allocate();
  std::vector<Result> results;
  for (int step = 0; step < kSteps; ++step) {
    const Batch data = batch(step, type);
    at::Tensor hidden = testing::matmul(data.x, model.in);
    for (int round = 0; round < rounds; ++round)
      for (auto& block : model.blocks) hidden = block->forward({hidden}, {})[0];
    at::Tensor loss = loss_of(testing::matmul(hidden, model.out), data.target);
    run_backward({loss}, {at::full_like(loss, 1.0 / kRows)});
    Result result{loss.item<double>() / kRows, {}, {}};
    GradMode no_grad(false);
    for (auto& unit : model.units())
      for (auto& parameter : unit.parameters) {
        at::Tensor& gradient = parameter->tensor.mutable_grad();
        if (!gradient.defined()) gradient = at::zeros_like(parameter->tensor);
        result.gradients.push_back(gradient.flatten().clone());
        parameter->tensor.sub_(gradient, kRate);
        result.values.push_back(parameter->tensor.detach().flatten().clone());
        gradient.reset();
      }
    results.push_back(result);
  }
  return results;
}

at::Tensor forward_block(ToyModel& model, size_t i, const at::Tensor& hidden, bool again) {
  auto function = [&model, i](const Tensors& in) { return model.blocks[i]->forward(in, {}); };
  return again ? recompute({hidden}, function)[0] : function({hidden})[0];
}

/// Loss of one microbatch, backward included, driven by boundary nodes.
double run_boundaries(ToyModel& model, DataParallel& engine, const Case& c, const Batch& data,
                      bool last) {
  DeferredGradients queue;
  engine.begin_microbatch(last);
  at::Tensor hidden = testing::matmul(data.x, model.in);
  for (int round = 0; round < c.rounds; ++round)
    for (size_t i = 0; i < model.blocks.size(); ++i)
      hidden = engine.run(i + 1, {hidden}, [&, i](const Tensors& in) -> Tensors {
        return {forward_block(model, i, in[0], c.recompute)};
      })[0];
  at::Tensor loss = loss_of(testing::matmul(hidden, model.out), data.target);
  {
    std::optional<DeferredGradients::Scope> scope;
    if (c.split) scope.emplace(queue);
    run_backward({loss}, {at::full_like(loss, 1.0 / kRows)});
  }
  queue.run();
  engine.end_microbatch();
  return loss.item<double>() / kRows;
}

/// The same, driven by explicit verbs as a pipeline executor does: a block at a time, each use with
/// its own graph. With a split backward all input-gradient passes come before the weight-gradient
/// passes.
double run_explicit(ToyModel& model, DataParallel& engine, const Case& c, const Batch& data,
                    bool last) {
  const bool now =
      last || (c.reduce == Reduce::every_microbatch && c.strategy >= Strategy::optim_grads);
  const auto when = now ? Unit::When::now : Unit::When::later;
  const size_t count = model.blocks.size(), uses = count * c.rounds;
  engine.unit(0).gather();
  const at::Tensor embedded = testing::matmul(data.x, model.in);
  std::vector<at::Tensor> inputs, outputs;
  at::Tensor hidden = embedded;
  for (size_t use = 0; use < uses; ++use) {
    Unit& unit = engine.unit(use % count + 1);
    inputs.push_back(hidden.detach().requires_grad_());
    unit.gather();
    outputs.push_back(forward_block(model, use % count, inputs.back(), c.recompute));
    unit.release_parameters();
    hidden = outputs.back();
  }
  const at::Tensor head_input = hidden.detach().requires_grad_();
  at::Tensor loss = loss_of(testing::matmul(head_input, model.out), data.target);
  run_backward({loss}, {at::full_like(loss, 1.0 / kRows)});
  at::Tensor gradient = head_input.grad();
  std::vector<DeferredGradients> queues(uses);
  const auto ready = [&](size_t use) {  // the first use is the last of backward
    if (use < count) engine.unit(use + 1).gradients_ready(when);
  };
  for (size_t use = uses; use-- > 0;) {
    Unit& unit = engine.unit(use % count + 1);
    unit.gather();
    {
      std::optional<DeferredGradients::Scope> scope;
      if (c.split) scope.emplace(queues[use]);
      run_backward({outputs[use]}, {gradient});
    }
    unit.release_parameters();
    if (!c.split) ready(use);
    gradient = inputs[use].grad();
  }
  for (size_t use = uses; c.split && use-- > 0;) {
    queues[use].run();
    ready(use);
  }
  run_backward({embedded}, {gradient});
  engine.unit(0).release_parameters();
  engine.unit(0).gradients_ready(when);
  return loss.item<double>() / kRows;
}

/// Largest relative difference from the reference over losses, gradients and values.
double worst_difference(World& world, Device& device, const Case& c,
                        const std::vector<Result>& expected, at::ScalarType type = at::kDouble) {
  static int serial = 0;
  std::vector<int> everyone;
  for (int rank = 0; rank < world.info().size; ++rank) everyone.push_back(rank);
  auto group = world.group(text("case ", serial++), everyone);
  ToyModel model(c.blocks, type);
  Layout layout;
  layout.strategy = c.strategy;
  layout.reduce = c.reduce;
  layout.reshard_after_forward = c.reshard;
  layout.prefetch = c.prefetch;
  layout.compute = layout.master = layout.reduce_dtype =
      type == at::kDouble ? Dtype::float64 : Dtype::float32;
  DataParallel engine(layout, *group, device, model.units(), &ToyModel::initialize);
  const int64_t rows = kRows / group->size() / c.microbatches;
  double worst = 0;
  auto differ = [&](const at::Tensor& a, const at::Tensor& b, double floor) {
    if (a.numel() == 0) return;
    const double difference =
        (a - b).norm().item<double>() / std::max(b.norm().item<double>(), floor);
    worst = std::isfinite(difference) ? std::max(worst, difference) : 1e30;
  };
  for (int step = 0; step < kSteps; ++step) {
    const Batch data = batch(step, type);
    double loss = 0;
    for (int m = 0; m < c.microbatches; ++m) {
      const int64_t first = (group->rank() * c.microbatches + m) * rows;
      const Batch part{data.x.narrow(0, first, rows), data.target.narrow(0, first, rows)};
      const bool last = m + 1 == c.microbatches;
      loss += c.boundaries ? run_boundaries(model, engine, c, part, last)
                           : run_explicit(model, engine, c, part, last);
    }
    at::Tensor total = at::full({1}, loss, at::kDouble);
    group->all_reduce(total, Op::sum, {"loss", "loss"}).wait();
    engine.wait_gradients();
    differ(total, at::full({1}, expected[step].loss, at::kDouble), 0);
    double norm = 0;
    for (const auto& g : expected[step].gradients) norm += g.pow(2).sum().item<double>();
    norm = std::sqrt(norm);
    worst = std::max(worst, std::abs(engine.gradient_norm() - norm) / norm);
    size_t index = 0;
    for (const auto& shard : engine.shards()) {
      const auto part = [&](const at::Tensor& whole) {
        return whole.slice(0, shard.range.begin, shard.range.begin + shard.range.count());
      };
      differ(shard.gradient, part(expected[step].gradients[index]), 1e-3 * norm);
      shard.values.sub_(shard.gradient, kRate);
      differ(shard.values, part(expected[step].values[index]), 1e-12);
      ++index;
    }
    engine.finish_step();
  }
  // The last finish_step's gathers end before the buffers go.
  engine.wait_gradients();
  at::Tensor agreed = at::full({1}, worst, at::kDouble);
  group->all_reduce(agreed, Op::max, {"verdict", "norm"}).wait();
  group->barrier({"end", "norm"});
  return agreed.item<double>();
}

std::vector<Case> interface_matrix() {
  std::vector<Case> cases;
  for (Strategy strategy :
       {Strategy::none, Strategy::optim, Strategy::optim_grads, Strategy::optim_grads_params})
    for (bool split : {false, true})
      for (bool again : {false, true})
        for (bool boundaries : {true, false}) {
          Case c;
          c.strategy = strategy, c.split = split, c.recompute = again, c.boundaries = boundaries;
          cases.push_back(c);
        }
  return cases;
}

TEST(Unit, BothDriversAreExactForWholeAndSplitBackwardWithAndWithoutRecompute) {
  const auto expected = reference(1);
  for (auto transport : {Transport::shared_memory, Transport::gloo})
    testing::run_ranks(2,
                       [&](World& world) {
                         auto device = cpu_device();
                         for (const Case& c : interface_matrix()) {
                           SCOPED_TRACE(c.name());
                           EXPECT_LT(worst_difference(world, *device, c, expected), 1e-12);
                         }
                       },
                       {.transport = transport});
}

// One reduction of one unit on one rank gives 1 % too much: below the engine, so that nothing but
// its result can show it.
TEST(Unit, AReductionThatIsOnePercentOffIsSeen) {
  const auto expected = reference(2);
  for (auto transport : {Transport::shared_memory, Transport::gloo})
    testing::run_ranks(2,
                       [&](World& world) {
                         auto device = cpu_device();
                         int serial = 0;
                         for (Case c : interface_matrix())
                           for (const char* unit : {"root", "blocks.0", "blocks.1"}) {
                             c.blocks = 2, c.microbatches = 3;
                             // The last of the step: of all three microbatches, or of the third.
                             const bool each = c.strategy >= Strategy::optim_grads;
                             SCOPED_TRACE(text(c.name(), " ", unit));
                             const testing::WrongReduction error{
                                 .unit = unit, .rank = serial++ % 2, .call = each ? 3 : 1};
                             testing::WorldWithAWrongReduction wrong(world, error);
                             const double worst = worst_difference(wrong, *device, c, expected);
                             EXPECT_GT(worst, 1e-3);
                             EXPECT_LT(worst, 1);
                           }
                       },
                       {.transport = transport});
}

// As layers that share weights do: every use adds to the gradient, and the reduction comes after
// the last one of backward.
TEST(DataParallel, UnitsThatAreUsedTwiceInOneForwardAreExact) {
  struct Size {
    int ranks, rounds, blocks;
  };
  // Three blocks are more than there are gradient buffers in turn.
  for (const Size size : {Size{2, 2, 2}, {2, 3, 2}, {3, 2, 2}, {2, 2, 3}}) {
    const auto expected = reference(size.blocks, size.rounds);
    testing::run_ranks(size.ranks, [&](World& world) {
      auto device = cpu_device();
      for (Case c : interface_matrix())
        for (bool reshard : {true, false})
          for (int prefetch : {0, 2}) {
            const bool gathers = c.strategy == Strategy::optim_grads_params;
            if (!gathers && (!reshard || prefetch == 0)) continue;
            c.blocks = size.blocks, c.rounds = size.rounds;
            c.reshard = reshard, c.prefetch = prefetch;
            c.microbatches = 2;
            SCOPED_TRACE(c.name());
            EXPECT_LT(worst_difference(world, *device, c, expected), 1e-12);
          }
    });
  }
}

TEST(DataParallel, EveryStrategyIsExactInEveryOption) {
  const auto expected = reference(4);
  for (int ranks : {1, 2, 3, 4}) {
    SCOPED_TRACE(ranks);
    testing::run_ranks(ranks, [&](World& world) {
      auto device = cpu_device();
      for (Strategy strategy :
           {Strategy::none, Strategy::optim, Strategy::optim_grads, Strategy::optim_grads_params})
        for (int microbatches : {1, 3})
          for (bool reshard : {true, false})
            for (auto reduce : {Reduce::every_microbatch, Reduce::step})
              for (int prefetch : {0, 2}) {
                if (kRows % (world.info().size * microbatches) != 0) continue;
                Case c;
                c.strategy = strategy, c.microbatches = microbatches, c.reshard = reshard;
                c.reduce = reduce, c.prefetch = prefetch, c.blocks = 4;
                SCOPED_TRACE(c.name());
                EXPECT_LT(worst_difference(world, *device, c, expected), 1e-12);
              }
    });
  }
}

TEST(DataParallel, OrdersEveryAccessOnTheRecordingDevice) {
  const auto expected = reference(4);
  for (auto transport : {Transport::shared_memory, Transport::gloo})
    for (auto side : {RecordingDevice::Side::early, RecordingDevice::Side::late})
      testing::run_ranks(
          2,
          [&](World& world) {
            for (Strategy strategy : {Strategy::none, Strategy::optim, Strategy::optim_grads,
                                      Strategy::optim_grads_params})
              for (int microbatches : {1, 3}) {
                Case c;
                c.strategy = strategy, c.microbatches = microbatches, c.blocks = 4;
                SCOPED_TRACE(c.name());
                RecordingDevice device(side);
                EXPECT_LT(worst_difference(world, device, c, expected), 1e-12);
                EXPECT_TRUE(device.races().empty()) << device.races().front();
                EXPECT_GT(device.operator_accesses(), 100);
              }
          },
          {.transport = transport});
}

}  // namespace
}  // namespace phalanx
