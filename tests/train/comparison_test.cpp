// Every layout computes what one rank computes.
#include "phalanx/train/comparison.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <fstream>
#include <thread>

#include "phalanx/base/error.h"
#include "phalanx/base/text.h"
#include "phalanx/parallel/parallelize.h"
#include "tests/support/ranks.h"
#include "tests/support/wrong_reduction.h"
#include "tests/train/small_run.h"

namespace phalanx::testing {
namespace {

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
  EXPECT_TRUE(reference->ready(std::chrono::seconds(60)));
  return reference;
}

void compare_all(const Config& config, int ranks) {
  const auto reference = reference_of(config, 2);
  run_ranks(ranks, [&](World& world) {
    Mesh mesh(borrowed(world), {.dp_shard = ranks});
    for (Strategy strategy : strategies)
      for (int64_t accumulation : {1, 3})
        for (bool reshard : {true, false})
          for (bool recompute : {false, true}) {
            if (!reshard && strategy != Strategy::optim_grads_params) continue;  // is refused
            SCOPED_TRACE(text(name(strategy), ", accumulation ", accumulation, ", reshard ",
                              reshard, ", recompute ", recompute));
            const auto comparison = compare_with_one_rank(
                with_layout(config, strategy, ranks, accumulation, reshard, recompute), mesh,
                *reference);
            EXPECT_TRUE(comparison.equal()) << comparison_table(comparison);
            EXPECT_EQ(comparison.worst.size(), 8u);
          }
  });
}

TEST(Comparison, EveryLayoutOnTwoRanksIsOneRankInFloat64) { compare_all(small_config(), 2); }

TEST(Comparison, EveryLayoutOnThreeRanksIsOneRankInFloat64) { compare_all(small_config(), 3); }

TEST(Comparison, WithDropoutToo) {
  Config config = small_config();
  config.model.spec.attn_pdrop = config.model.spec.resid_pdrop = config.model.spec.embd_pdrop = 0.2;
  compare_all(config, 2);
}

// Parameters of one element, and of fewer than there are ranks; parts that hold padding only.
TEST(Comparison, TinyParametersOnFourAndEightRanksAreOneRank) {
  Config config = small_config();
  config.model.spec.hidden_size = 5;
  config.model.spec.num_attention_heads = config.model.spec.num_key_value_heads = 1;
  config.model.spec.intermediate_size = 1;
  config.batch.global = 8;
  const auto reference = reference_of(config, 2);
  for (int ranks : {4, 8})
    run_ranks(ranks, [&](World& world) {
      Mesh mesh(borrowed(world), {.dp_shard = ranks});
      for (Strategy strategy : strategies) {
        SCOPED_TRACE(text(name(strategy), " on ", ranks, " ranks"));
        const auto comparison = compare_with_one_rank(
            with_layout(config, strategy, ranks, 1, true, false), mesh, *reference);
        EXPECT_TRUE(comparison.equal()) << comparison_table(comparison);
      }
    });
}

TEST(Comparison, ReductionOncePerStepAndOtherPrefetchesAreOneRank) {
  const Config config = small_config();
  const auto reference = reference_of(config, 2);
  run_ranks(2, [&](World& world) {
    Mesh mesh(borrowed(world), {.dp_shard = 2});
    for (Strategy strategy : {Strategy::optim_grads, Strategy::optim_grads_params})
      for (int prefetch : {0, 2}) {
        const bool gathers = strategy == Strategy::optim_grads_params;
        if (!gathers && prefetch > 0) continue;  // once: it gathers nothing
        SCOPED_TRACE(text(name(strategy), ", prefetch ", prefetch));
        Config layout = with_layout(config, strategy, 2, 3, true, false);
        layout.parallel.reduce = Reduce::step;
        if (gathers) layout.parallel.prefetch = prefetch;
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

// Runs `body` on two ranks, of which rank 0 has started the reference of `config` before it joined;
// `started` gets the id of the reference's process.
void with_reference(const Config& config, std::chrono::milliseconds deadline,
                    const std::function<void(pid_t)>& started,
                    const std::function<void(World&, Communicator&, Reference&)>& body) {
  const auto statuses = fork_ranks(2, [&](const WorldInfo& info) {
    Reference reference(config, verification_trials(config, 1));
    if (info.rank == 0) {
      reference.start();
      pid_t process = -1;
      std::ifstream("/proc/thread-self/children") >> process;
      started(process);
    }
    const auto world = World::join(info, {.deadline = deadline});
    const auto everyone = group_of_all_ranks(*world);
    body(*world, *everyone, reference);
    return 0;
  });
  for (const int status : statuses) EXPECT_EQ(status, 0);
}

// As a large model's does: its process is stopped for longer than a collective may take.
TEST(Comparison, AReferenceMayTakeLongerThanTheDeadline) {
  Config config = small_config();
  config.batch.micro = 9;
  const std::chrono::milliseconds deadline(1000);
  const auto suspend = [&](pid_t process) {
    ASSERT_GT(process, 0);
    kill(process, SIGSTOP);
    std::thread([=] {
      std::this_thread::sleep_for(deadline * 3 / 2);
      kill(process, SIGCONT);
    }).detach();
  };
  with_reference(config, deadline, suspend,
                 [&](World& world, Communicator& everyone, Reference& reference) {
                   wait_together(everyone, reference, deadline);
                   Mesh mesh(borrowed(world), {.dp_shard = 2});
                   const auto comparison = compare_with_one_rank(config, mesh, reference);
                   EXPECT_TRUE(comparison.equal()) << comparison_table(comparison);
                 });
}

TEST(Comparison, AFailingReferenceSaysWhyOnAllRanks) {
  Config config = small_config();
  config.data.kind = DataKind::tokens;
  config.data.train = {"/nonexistent/train.tokens"};
  config.batch.micro = 18;
  const std::chrono::seconds deadline(20);
  with_reference(
      config, deadline, [](pid_t) {},
      [&](World&, Communicator& everyone, Reference& reference) {
        try {
          wait_together(everyone, reference, deadline);
          ADD_FAILURE() << "its data does not exist";
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), ExitCode::data);
          EXPECT_NE(std::string(error.what())
                        .find("the reference on one rank: cannot open /nonexistent/train.tokens"),
                    std::string::npos)
              << error.what();
        }
      });
}

}  // namespace
}  // namespace phalanx::testing
