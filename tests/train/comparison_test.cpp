// Every layout computes what one rank computes.
#include "phalanx/train/comparison.h"

#include <gtest/gtest.h>

#include "phalanx/base/error.h"
#include "phalanx/base/text.h"
#include "tests/support/ranks.h"
#include "tests/support/wrong_reduction.h"
#include "tests/train/small_run.h"

namespace phalanx::testing {
namespace {

constexpr Strategy strategies[] = {Strategy::none, Strategy::optim, Strategy::optim_grads,
                                   Strategy::optim_grads_params};

Config with_layout(Config config, Strategy strategy, int ranks, int64_t accumulation, bool reshard,
                   bool recompute) {
  config.parallel.strategy = strategy;
  config.parallel.reshard_after_forward = reshard;
  config.batch.micro = config.batch.global / ranks / accumulation;
  config.recompute.mode = recompute ? RecomputeMode::full : RecomputeMode::none;
  return config;
}

// The reference for all layouts: it splits the batch in another way than any of them.
std::unique_ptr<Reference> reference_of(Config config, int64_t steps) {
  config.batch.micro = 2;
  config.parallel.degree.dp_shard = 1;
  auto reference = std::make_unique<Reference>(config, verification_trials(config, steps));
  reference->start();
  reference->wait();
  return reference;
}

void compare_all(const Config& config, int ranks, bool dropout) {
  const auto reference = reference_of(config, 2);
  run_ranks(ranks, [&](World& world) {
    Mesh mesh(borrowed(world), {.dp_shard = ranks});
    for (Strategy strategy : strategies)
      for (int64_t accumulation : {1, 3})
        for (bool reshard : {true, false})
          for (bool recompute : {false, true}) {
            SCOPED_TRACE(text(name(strategy), ", accumulation ", accumulation, ", reshard ",
                              reshard, ", recompute ", recompute, ", dropout ", dropout));
            const auto comparison = compare_with_one_rank(
                with_layout(config, strategy, ranks, accumulation, reshard, recompute), mesh,
                *reference);
            EXPECT_TRUE(comparison.equal()) << comparison_table(comparison);
            EXPECT_EQ(comparison.worst.size(), 8u);
          }
  });
}

TEST(Comparison, EveryLayoutOnTwoRanksIsOneRankInFloat64) { compare_all(small_config(), 2, false); }

TEST(Comparison, EveryLayoutOnThreeRanksIsOneRankInFloat64) {
  compare_all(small_config(), 3, false);
}

TEST(Comparison, WithDropoutToo) {
  Config config = small_config();
  config.model.spec.attn_pdrop = config.model.spec.resid_pdrop = config.model.spec.embd_pdrop = 0.2;
  compare_all(config, 2, true);
}

TEST(Comparison, ReductionOncePerStepAndOtherPrefetchesAreOneRank) {
  const Config config = small_config();
  const auto reference = reference_of(config, 2);
  run_ranks(2, [&](World& world) {
    Mesh mesh(borrowed(world), {.dp_shard = 2});
    for (Strategy strategy : {Strategy::optim_grads, Strategy::optim_grads_params})
      for (int prefetch : {0, 2}) {
        SCOPED_TRACE(text(name(strategy), ", prefetch ", prefetch));
        Config layout = with_layout(config, strategy, 2, 3, true, false);
        layout.parallel.reduce = Reduce::step;
        layout.parallel.prefetch = prefetch;
        const auto comparison = compare_with_one_rank(layout, mesh, *reference);
        EXPECT_TRUE(comparison.equal()) << comparison_table(comparison);
      }
  });
}

TEST(Comparison, Float32ToItsTolerance) {
  const Config config = small_config(Dtype::float32);
  const auto reference = reference_of(config, 2);
  run_ranks(2, [&](World& world) {
    Mesh mesh(borrowed(world), {.dp_shard = 2});
    for (Strategy strategy : strategies) {
      SCOPED_TRACE(name(strategy));
      const auto comparison =
          compare_with_one_rank(with_layout(config, strategy, 2, 3, true, true), mesh, *reference);
      EXPECT_TRUE(comparison.equal()) << comparison_table(comparison);
      EXPECT_EQ(comparison.worst.size(), 4u);  // SGD alone
    }
  });
}

TEST(Comparison, OverGloo) {
  const Config config = small_config();
  const auto reference = reference_of(config, 2);
  run_ranks(2,
            [&](World& world) {
              Mesh mesh(borrowed(world), {.dp_shard = 2});
              for (Strategy strategy : strategies) {
                SCOPED_TRACE(name(strategy));
                const auto comparison = compare_with_one_rank(
                    with_layout(config, strategy, 2, 3, true, false), mesh, *reference);
                EXPECT_TRUE(comparison.equal()) << comparison_table(comparison);
              }
            },
            {.transport = Transport::gloo});
}

TEST(Comparison, APlantedErrorIsFound) {
  for (Dtype dtype : {Dtype::float64, Dtype::float32}) {
    const Config config = small_config(dtype);
    const auto reference = reference_of(config, 2);
    run_ranks(2, [&](World& world) {
      Mesh mesh(borrowed(world), {.dp_shard = 2});
      for (Strategy strategy : strategies) {
        SCOPED_TRACE(text(name(strategy), " ", name(dtype)));
        const auto comparison = compare_with_one_rank(
            with_layout(config, strategy, 2, 1, true, false), mesh, *reference, 0.01);
        EXPECT_FALSE(comparison.equal());
        EXPECT_GT(comparison.largest().error, 1e-4);
        EXPECT_LT(comparison.largest().error, 1);
      }
    });
  }
}

// Below the engine: one reduction of one unit on one rank gives 1 % too much.
TEST(Comparison, AReductionThatIsOnePercentOffIsFoundAndItsTensorNamed) {
  const Config config = small_config();
  const auto reference = reference_of(config, 2);
  for (Strategy strategy : strategies)
    run_ranks(2, [&](World& world) {
      SCOPED_TRACE(name(strategy));
      const auto wrong = std::make_shared<WorldWithAWrongReduction>(
          world, WrongReduction{.unit = "blocks.1", .rank = 1});
      Mesh mesh(wrong, {.dp_shard = 2});
      const auto comparison =
          compare_with_one_rank(with_layout(config, strategy, 2, 1, true, false), mesh, *reference);
      EXPECT_FALSE(comparison.equal());
      const Difference& gradient = comparison.worst[2];
      EXPECT_EQ(gradient.quantity, "gradient");
      EXPECT_GT(gradient.error, 1e-3);
      EXPECT_LT(gradient.error, 0.1);
      if (world.info().rank == 0) {
        EXPECT_NE(gradient.tensor.find("blocks.1."), std::string::npos) << gradient.tensor;
      }
    });
}

TEST(Comparison, AFailingReferenceSaysWhy) {
  Config config = small_config();
  config.data.kind = DataKind::tokens;
  config.data.train = {"/nonexistent/train.tokens"};
  config.batch.micro = 18;
  Reference reference(config, verification_trials(config, 1));
  reference.start();
  EXPECT_THROW(reference.wait(), Error);
}

}  // namespace
}  // namespace phalanx::testing
