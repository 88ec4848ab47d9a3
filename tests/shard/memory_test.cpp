// What a rank holds, against the strategy table of docs/design.md, by the counting allocator with
// shared segments included.
#include "phalanx/device/memory.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/shard/toy_training.h"
#include "tests/support/ranks.h"

namespace phalanx {
namespace {

using testing::ToyRun;
using testing::ToyTraining;

constexpr int64_t kElement = 4;  // bytes

/// Blocks of a megabyte, whose activations are small beside them.
ToyRun large(Strategy strategy, int blocks) {
  ToyRun run;
  run.strategy = strategy, run.blocks = blocks;
  run.width = 192, run.inner = 768;
  return run;
}

/// Elements held by one rank at rest.
struct Held {
  int64_t state;    ///< parameters, gradients and two AdamW moments: the table
  int64_t buffers;  ///< where gradients are written and reduced from
};

Held held_at_rest(const ToyRun& run, int64_t root, int64_t blocks, int ranks) {
  const int64_t all = root + blocks, part = all / ranks;
  const bool whole = run.strategy < Strategy::optim_grads || run.reduce == Reduce::step;
  const int64_t parameters = run.strategy == Strategy::optim_grads_params ? part : all;
  const int64_t moments = run.strategy == Strategy::none ? 2 * all : 2 * part;
  return {parameters + (whole ? all : part) + moments, whole ? 0 : root + 2 * blocks / run.blocks};
}

/// A poisoning CPU device that knows how much the engine holds of it.
class WatchedDevice final : public Device {
 public:
  Stream stream(std::string_view name) override { return inner_->stream(name); }
  void launch(Stream stream, std::string_view name, std::span<const Access> accesses,
              std::function<void()> work) override {
    inner_->launch(stream, name, accesses, std::move(work));
  }
  Event record(Stream stream) override { return inner_->record(stream); }
  void wait(Stream stream, const Event& event) override { inner_->wait(stream, event); }
  at::Tensor allocate(Stream stream, int64_t bytes, std::string_view name) override {
    held += bytes;
    peak = std::max(peak, held);
    at::Tensor buffer = inner_->allocate(stream, bytes, name);
    if (keep) kept.push_back(buffer);
    return buffer;
  }
  void free(Stream stream, at::Tensor buffer) override {
    held -= static_cast<int64_t>(buffer.nbytes());
    inner_->free(stream, buffer);
  }

  bool keep = false;  ///< references to all buffers, so that they can be read later
  std::vector<at::Tensor> kept;
  int64_t held = 0, peak = 0;  ///< bytes

 private:
  std::unique_ptr<Device> inner_ = cpu_device(true);
};

struct Measured {
  int64_t rest, forward_peak, backward_peak;  ///< bytes above what there was before the model
  int64_t forward_buffers, backward_buffers;  ///< bytes that the engine held for gathered units
  int64_t root, blocks;                       ///< elements
};

Measured measure(World& world, const ToyRun& run) {
  WatchedDevice device;
  auto group = testing::everyone(world);
  group->barrier({"begin", "check"});
  const int64_t before = rank_memory().current;
  Measured measured{};
  {
    ToyTraining training(run, *group, device);
    training.step();  // the transport's own buffers exist after it
    training.settle();
    measured.rest = rank_memory().current - before;
    measured.root = training.root_elements();
    measured.blocks = training.block_elements();
    for (int m = 0; m < run.microbatches; ++m) {
      reset_peak_memory();
      device.peak = device.held;
      const at::Tensor loss = training.forward(m + 1 == run.microbatches);
      measured.forward_peak = std::max(measured.forward_peak, rank_memory().peak - before);
      measured.forward_buffers = std::max(measured.forward_buffers, device.peak);
      reset_peak_memory();
      device.peak = device.held;
      training.backward(loss);
      measured.backward_buffers = std::max(measured.backward_buffers, device.peak);
      measured.backward_peak = std::max(measured.backward_peak, rank_memory().peak - before);
    }
    training.update();
    training.settle();
    EXPECT_EQ(device.held, 0);
    EXPECT_NEAR(rank_memory().current - before, measured.rest, 1 << 15) << "a step leaves memory";
  }
  group->barrier({"end", "check"});
  return measured;
}

TEST(Memory, OfStateAtRestIsTheTablesForEveryStrategy) {
  for (auto transport : {Transport::shared_memory, Transport::gloo})
    for (int ranks : {2, 4})
      testing::run_ranks(
          ranks,
          [](World& world) {
            count_memory();
            for (auto strategy : {Strategy::none, Strategy::optim, Strategy::optim_grads,
                                  Strategy::optim_grads_params})
              for (auto reduce : {Reduce::every_microbatch, Reduce::step}) {
                ToyRun run = large(strategy, 8);
                run.reduce = reduce;
                SCOPED_TRACE(run.name());
                const Measured got = measure(world, run);
                const Held held = held_at_rest(run, got.root, got.blocks, world.info().size);
                const double state = got.rest - held.buffers * kElement;
                EXPECT_NEAR(state / (held.state * kElement), 1, 0.02);
              }
          },
          {.transport = transport});
}

TEST(Memory, HeldInForwardAndBackwardDoesNotGrowWithTheBlocks) {
  for (auto transport : {Transport::shared_memory, Transport::gloo})
    testing::run_ranks(
        2,
        [transport](World& world) {
          count_memory();
          for (int blocks : {4, 16})
            for (int prefetch : {0, 1, 2}) {
              ToyRun run = large(Strategy::optim_grads_params, blocks);
              run.prefetch = prefetch;
              SCOPED_TRACE(run.name());
              const Measured got = measure(world, run);
              const int64_t unit = got.blocks / blocks * kElement, root = got.root * kElement;
              if (transport == Transport::gloo) {  // beside them: what Gloo stages a call through
                EXPECT_EQ(got.forward_buffers, root + (1 + prefetch) * unit);
                EXPECT_LE(got.backward_buffers, root + (1 + prefetch) * unit);
                continue;
              }
              // Where ranks share memory the gathered unit is the window: no buffer at all.
              EXPECT_EQ(got.forward_buffers + got.backward_buffers, 0);
              EXPECT_LE(got.forward_peak, got.rest + unit / 5);  // activations
              EXPECT_LE(got.backward_peak, got.rest + unit / 5);
            }
        },
        {.transport = transport});
}

TEST(Memory, OfGradientsUnderOptimGradsIsAPartTheRootAndTwoBuckets) {
  for (int microbatches : {1, 4})
    testing::run_ranks(2, [microbatches](World& world) {
      count_memory();
      ToyRun run = large(Strategy::optim_grads, 8);
      run.microbatches = microbatches;
      const Measured got = measure(world, run);
      const int n = world.info().size;
      const int64_t all = got.root + got.blocks, bucket = got.blocks / run.blocks;
      const int64_t rest = (all + 2 * all / n) * kElement;  // values and moments
      const int64_t bound = all / n + got.root + 2 * bucket;
      const int64_t peak = std::max(got.forward_peak, got.backward_peak);
      EXPECT_LE(peak, rest + bound * kElement + bucket * kElement / 5);
    });
}

TEST(Memory, ReleasedByTheEngineIsPoisoned) {
  testing::run_ranks(2,
                     [](World& world) {
                       auto group = testing::everyone(world);
                       WatchedDevice device;
                       device.keep = true;
                       ToyTraining training({}, *group, device);
                       Unit& unit = training.engine().unit(1);
                       unit.gather();
                       ASSERT_EQ(device.kept.size(), 1u);
                       const at::Tensor values = device.kept[0].view(at::kFloat);
                       EXPECT_TRUE((values.slice(0, 0, 160) == 0.01f).all().item<bool>());
                       unit.release_parameters();
                       EXPECT_TRUE(values.isnan().all().item<bool>());
                       training.step();
                       training.settle();
                       EXPECT_GT(device.kept.size(), 9u);
                       for (const auto& buffer : device.kept)
                         EXPECT_TRUE(buffer.view(at::kFloat).isnan().all().item<bool>());
                       for (const auto& shard : training.engine().shards())
                         EXPECT_FALSE(shard.values.isnan().any().item<bool>());
                       group->barrier({"end", "check"});
                     },
                     {.transport = Transport::gloo});
}

}  // namespace
}  // namespace phalanx
