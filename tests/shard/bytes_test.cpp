// What a step receives from other ranks, against the strategy table of docs/design.md, exactly.
#include <gtest/gtest.h>

#include "phalanx/comm/ledger.h"
#include "tests/shard/toy_training.h"
#include "tests/support/ranks.h"

namespace phalanx {
namespace {

using testing::ToyRun;
using testing::ToyTraining;

/// Element counts of the table, to be multiplied with (N-1)/N x 4 bytes.
struct Traffic {
  int64_t parameters, gradients;
};

Traffic table(const ToyRun& run, int64_t root, int64_t blocks) {
  const int64_t all = root + blocks, k = run.microbatches;
  const int64_t reductions = run.reduce == Reduce::step ? 1 : k;
  switch (run.strategy) {
    case Strategy::none:
      return {0, 2 * all};
    case Strategy::optim:
      return {all, all};
    case Strategy::optim_grads:
      return {all, reductions * all};
    case Strategy::optim_grads_params:
      break;
  }
  return {k * root + (run.reshard ? 2 * k : k) * blocks, reductions * all};
}

int64_t sum_over_ranks(Communicator& group, int64_t value) {
  at::Tensor total = at::full({1}, value, at::kLong);
  group.all_reduce(total, Op::sum, {"sum", "check"}).wait();
  return total.item<int64_t>();
}

void check_step(World& world, Device& device, const ToyRun& run) {
  SCOPED_TRACE(run.name());
  auto group = testing::everyone(world);
  ToyTraining training(run, *group, device);
  training.step();
  training.settle();
  group->barrier({"step", "check"});
  world.ledger().reset();
  training.step();
  training.engine().gradient_norm();
  training.settle();

  const std::string prefix = std::string(group->name()) + "/";
  const Ledger::Rows rows = world.ledger().snapshot();
  int64_t parameters = 0, gradients = 0;
  for (const auto& [row, bytes] : rows) {
    if (row == prefix + "parameters")
      parameters = bytes;
    else if (row == prefix + "gradients")
      gradients = bytes;
    else if (row != prefix + "norm" && row != prefix + "fingerprints")
      EXPECT_EQ(bytes, 0) << row << " is not a row of the table";
  }
  const int n = world.info().size;
  const Traffic expected = table(run, training.root_elements(), training.block_elements());
  // An all-reduce has no shards, so its parts may differ by a cache line; their sum may not.
  const int64_t uneven = run.strategy == Strategy::none ? n * 64 * (run.blocks + 1) : 0;
  EXPECT_EQ(parameters, expected.parameters * 4 * (n - 1) / n);
  EXPECT_NEAR(gradients, expected.gradients * 4 * (n - 1) / n, uneven);
  EXPECT_EQ(sum_over_ranks(*group, gradients), expected.gradients * 4 * (n - 1));
  group->barrier({"end", "check"});
}

TEST(Bytes, OfAStepEqualTheTableForEveryStrategyOnBothTransports) {
  for (auto transport : {Transport::shared_memory, Transport::gloo})
    for (int ranks : {2, 3, 4}) {
      SCOPED_TRACE(text(ranks, " ranks, transport ", static_cast<int>(transport)));
      testing::run_ranks(
          ranks,
          [](World& world) {
            auto device = cpu_device();
            for (auto strategy : {Strategy::none, Strategy::optim, Strategy::optim_grads,
                                  Strategy::optim_grads_params})
              for (int microbatches : {1, 3})
                for (auto reduce : {Reduce::every_microbatch, Reduce::step})
                  for (bool reshard : {true, false}) {
                    if (!reshard && strategy != Strategy::optim_grads_params) continue;
                    ToyRun run;
                    run.strategy = strategy, run.microbatches = microbatches;
                    run.reduce = reduce, run.reshard = reshard;
                    check_step(world, *device, run);
                  }
          },
          {.transport = transport});
    }
}

TEST(Bytes, DoNotDependOnPrefetch) {
  testing::run_ranks(2, [](World& world) {
    auto device = cpu_device();
    for (int prefetch : {0, 2, 9}) {
      ToyRun run;
      run.prefetch = prefetch, run.microbatches = 2;
      check_step(world, *device, run);
    }
  });
}

TEST(Bytes, OfOneRankAreNone) {
  testing::run_ranks(1, [](World& world) {
    auto device = cpu_device();
    check_step(world, *device, {});
  });
}

}  // namespace
}  // namespace phalanx
