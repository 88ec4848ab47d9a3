// How much of communication hides behind compute: links that take as long as a block's forward.
#include <gtest/gtest.h>

#include <iostream>
#include <thread>

#include "phalanx/comm/delayed.h"
#include "tests/shard/toy_training.h"
#include "tests/support/ranks.h"

namespace phalanx {
namespace {

using testing::ToyRun;
using testing::ToyTraining;
using namespace std::chrono_literals;

constexpr auto kForward = 10ms;  // of one block; its backward takes twice that

/// Sleeps in backward.
at::Tensor slow_backward(const at::Tensor& x) {
  return boundary({x}, [] { std::this_thread::sleep_for(2 * kForward); })[0];
}

double exposed_share(World& world, const ToyRun& run) {
  auto device = cpu_device();
  DelayedCommunicator group(testing::everyone(world), kForward);
  ToyTraining training(run, group, *device);
  training.in_block = [](const at::Tensor& x) {
    std::this_thread::sleep_for(kForward);
    return slow_backward(x);
  };
  training.step();
  training.settle();
  group.reset();
  for (int step = 0; step < 2; ++step) training.step();
  training.settle();
  const double exposed = 1 - group.record().hidden_share();
  EXPECT_GT(group.record().calls, 2 * run.blocks);
  group.barrier({"end", "check"});
  return exposed;
}

TEST(Overlap, WithPrefetchAtMostFifteenPercentOfTheDelaysAreExposed) {
  testing::run_ranks(2, [](World& world) {
    ToyRun run;
    run.blocks = 16;
    for (auto strategy :
         {Strategy::none, Strategy::optim, Strategy::optim_grads, Strategy::optim_grads_params}) {
      run.strategy = strategy;
      SCOPED_TRACE(run.name());
      const double exposed = exposed_share(world, run);
      std::cout << run.name() << ": " << 100 * exposed << " % exposed\n";
      EXPECT_LE(exposed, 0.15);
    }
    run.prefetch = 0;  // the measurement sees what is not hidden
    EXPECT_GT(exposed_share(world, run), 0.4);
  });
}

}  // namespace
}  // namespace phalanx
