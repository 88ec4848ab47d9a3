// The trainer through the library's interface.
#include "phalanx/train/trainer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

#include "phalanx/base/text.h"
#include "phalanx/checkpoint/checkpoint.h"
#include "phalanx/config/keys.h"
#include "phalanx/config/write.h"
#include "phalanx/data/token_file.h"
#include "phalanx/train/run.h"
#include "tests/support/ranks.h"
#include "tests/train/small_run.h"
#include "tests/train/wrapped_model.h"

namespace phalanx::testing {
namespace {

namespace fs = std::filesystem;

TEST(Trainer, LossesAreTheSameOnOneTwoAndThreeRanksUnderEveryStrategy) {
  const std::string folder = temporary_folder();
  Config config = small_config();
  config.checkpoint.every = 0;
  const auto expected = losses_of(config, 1, folder + "/one");
  ASSERT_EQ(expected.size(), 6u);
  EXPECT_LT(expected.back(), expected.front());
  for (int ranks : {2, 3})
    for (Strategy strategy : strategies) {
      SCOPED_TRACE(text(ranks, " ranks, ", name(strategy)));
      config.parallel.strategy = strategy;
      config.batch.micro = 3;
      expect_near(losses_of(config, ranks, text(folder, "/", ranks, name(strategy))), expected,
                  1e-9);
    }
}

TEST(Trainer, SamplesAndRatesFollowTheUpdatesAcrossEpochsAndAccumulation) {
  // 50 samples, 18 a step: an epoch ends inside of the third step.
  const std::string folder = temporary_folder();
  Config config = small_config();
  config.checkpoint.every = 1;
  const auto straight = losses_of(config, 1, folder + "/straight");
  const auto rates = metric(folder + "/straight", "lr");
  config.batch.micro = 3;
  config.lr.decay_steps = 6;
  for (int64_t steps = 1; steps <= 6; ++steps) {  // stopped after every step
    config.train.steps = steps;
    losses_of(config, 2, folder + "/broken");
  }
  expect_near(metric(folder + "/broken", "loss"), straight, 1e-9);
  EXPECT_EQ(metric(folder + "/broken", "lr"), rates);
  EXPECT_EQ(rates[0], 0.5e-2);  // warm-up of two updates, whatever the accumulation
  EXPECT_EQ(rates[1], 1e-2);
  EXPECT_EQ(metric(folder + "/broken", "tokens").back(), 6.0 * 18 * 7);
}

// A step before, between or after changes nothing of what an evaluation sees but the parameters: it
// begins with the first sample each time, in a run that went on, too, and takes none of training's.
TEST(Trainer, EvaluatesTheSameSamplesEachTimeAndMovesNothingOfTraining) {
  const std::string folder = temporary_folder();
  Config config = small_config();
  config.model.spec.resid_pdrop = 0.1;
  config.lr.decay_steps = 6;
  const auto alone = losses_of(config, 2, folder + "/alone");
  config.train.evaluate_every = 1;
  EXPECT_EQ(losses_of(config, 2, folder + "/straight"), alone);
  for (int64_t steps : {3, 6}) {
    config.train.steps = steps;
    losses_of(config, 2, folder + "/broken");
  }
  const auto straight = metric(folder + "/straight", "validation_loss");
  EXPECT_EQ(straight.size(), 6u);
  EXPECT_EQ(metric(folder + "/broken", "validation_loss"), straight);
  run_ranks(2, [&](World& world) {
    Trainer trainer(config, borrowed(world));
    const double first = trainer.evaluate()->loss;
    EXPECT_EQ(trainer.evaluate()->loss, first);
    trainer.train_step();
    EXPECT_NE(trainer.evaluate()->loss, first);
  });
}

// Files of 10, 10, 10 and 7 sequences on 4 ranks: no rank comes to an end before the others.
TEST(Trainer, FilesOfUnequalLengthAreOneStreamForAllRanks) {
  const std::string folder = temporary_folder();
  Config config = small_config();
  config.model.spec.vocab_size = 256;
  config.data.kind = DataKind::tokens;
  config.checkpoint.every = 0;
  config.batch.global = 4;
  config.train.steps = 15;  // 37 samples: an epoch ends in the tenth step
  for (int64_t sequences : {10, 10, 10, 7}) {
    config.data.train.push_back(text(folder, "/", config.data.train.size()));
    TokenFileWriter writer(config.data.train.back(), "byte", 256);
    std::vector<int64_t> ids(sequences * 7 + (config.data.train.size() == 4));
    for (size_t i = 0; i < ids.size(); ++i)
      ids[i] = int64_t(i * i + 31 * config.data.train.size()) % 251;
    writer.add_document(ids);
    writer.finish();
  }
  const auto expected = losses_of(config, 1, folder + "/one");
  expect_near(losses_of(config, 4, folder + "/four"), expected, 1e-9);
  EXPECT_EQ(metric(folder + "/four", "tokens").back(), 15.0 * 4 * 7);
}

TEST(Trainer, ReplicasStayEqualBitForBit) {
  for (Strategy strategy : strategies)
    run_ranks(3, [&](World& world) {
      Config config = small_config(Dtype::float32);
      config.parallel.strategy = strategy;
      config.model.spec.resid_pdrop = 0.1;
      Trainer trainer(config, borrowed(world));
      DataParallel& engine = trainer.model().engine();
      for (int step = 0; step <= 10; ++step) {
        for (size_t u = 0; step % 5 == 0 && u < engine.unit_count(); ++u) {
          Unit& unit = engine.unit(u);
          SCOPED_TRACE(text(name(strategy), ", step ", step, ", ", unit.name()));
          unit.gather();
          for (const Parameter& parameter : unit.parameters()) {
            const at::Tensor mine = parameter->tensor.detach().flatten();
            at::Tensor all = at::empty({3, mine.numel()}, mine.options());
            const Handle handle = trainer.everyone().all_gather(all, mine, {"test", "replicas"});
            handle.wait();
            handle.wait_inputs();
            for (int rank : {1, 2}) EXPECT_TRUE(all[rank].equal(all[0])) << parameter->spec.name;
          }
          unit.release_parameters();
        }
        if (step < 10) trainer.train_step();
      }
    });
}

// No option is read, shown and then dropped: each one changes the losses of a few steps.
TEST(Trainer, EveryOptionOfModelOptimizerAndRateChangesWhatIsComputed) {
  Config config = small_config();
  config.lr.decay_steps = 5;
  const std::string adamw = to_toml(config);
  config.optimizer.kind = OptimizerKind::sgd;
  const std::string sgd = to_toml(config);
  const std::map<std::string, std::string> values = {{"hidden_size", "24"},
                                                     {"num_hidden_layers", "2"},
                                                     {"num_attention_heads", "4"},
                                                     {"intermediate_size", "24"},
                                                     {"vocab_size", "31"},
                                                     {"layer_norm_epsilon", "0.1"},
                                                     {"attn_pdrop", "0.2"},
                                                     {"resid_pdrop", "0.2"},
                                                     {"embd_pdrop", "0.2"},
                                                     {"tie_word_embeddings", "false"},
                                                     {"initializer_range", "0.1"},
                                                     {"kind", "sgd"},
                                                     {"beta1", "0.5"},
                                                     {"beta2", "0.5"},
                                                     {"epsilon", "0.1"},
                                                     {"momentum", "0.5"},
                                                     {"weight_decay", "1"},
                                                     {"clip_norm", "1e-3"},
                                                     {"schedule", "constant"},
                                                     {"peak", "1e-3"},
                                                     {"minimum", "5e-3"},
                                                     {"warmup_steps", "3"},
                                                     {"decay_steps", "6"}};
  // The folder of a model, the one kind there is, a constraint, and a bound that changes nothing.
  const std::set<std::string> without = {"path", "model.kind", "num_key_value_heads",
                                         "max_position_embeddings"};
  run_ranks(1, [&](World& world) {
    const auto losses = [&](const std::string& toml, const std::vector<std::string>& overrides) {
      Trainer trainer(parse_config(toml, "test", overrides).config, borrowed(world));
      std::vector<double> losses;
      for (int step = 0; step < 6; ++step) losses.push_back(trainer.train_step().loss);
      return losses;
    };
    const auto with_adamw = losses(adamw, {}), with_sgd = losses(sgd, {});
    for (const Key& key : keys()) {
      if (key.section != "model" && key.section != "optimizer" && key.section != "lr") continue;
      if (without.contains(key.name) || without.contains(key.full_name())) continue;
      SCOPED_TRACE(key.full_name());
      const auto value = values.find(key.name);
      ASSERT_NE(value, values.end()) << "a new key: give it a value here";
      std::vector<std::string> overrides = {text("--", key.full_name(), "=", value->second)};
      if (key.name == "num_attention_heads") overrides.push_back("--model.num_key_value_heads=4");
      if (key.name == "schedule") overrides.push_back("--lr.decay_steps=0");
      const bool sgd_only = key.name == "momentum";
      EXPECT_NE(losses(sgd_only ? sgd : adamw, overrides), sgd_only ? with_sgd : with_adamw);
    }
    EXPECT_NE(losses(adamw, {"--train.seed=1"}), with_adamw);
    EXPECT_NE(losses(adamw, {"--data.seed=1"}), with_adamw);
    EXPECT_EQ(losses(adamw, {"--train.log_every=7"}), with_adamw);
  });
}

Config exploding() {
  Config config = small_config(Dtype::float32);
  config.optimizer.kind = OptimizerKind::sgd;
  config.optimizer.clip_norm = 0;
  config.lr.peak = 1e30;
  config.lr.warmup_steps = 0;
  config.checkpoint.every = 0;
  return config;
}

TEST(Trainer, ALossThatIsNotFiniteStopsAllRanksAndNamesTheStep) {
  run_ranks(2, [&](World& world) {
    Trainer trainer(exploding(), borrowed(world));
    trainer.train_step();
    try {
      trainer.train_step();
      ADD_FAILURE() << "the second step's loss is not finite";
    } catch (const Error& error) {
      const std::string said = error.what();
      EXPECT_EQ(said.rfind("step 2: the loss is ", 0), 0u) << said;
      EXPECT_NE(said.find("rank 1: "), std::string::npos) << said;
      EXPECT_NE(said.find("train.on_nan = \"skip\""), std::string::npos) << said;
      EXPECT_NE(said.find("lower lr.peak, set optimizer.clip_norm"), std::string::npos) << said;
      EXPECT_EQ(error.code(), ExitCode::check_failed);
    }
  });
}

// Its loss is no number in one step, until it is healed.
class Ill final : public WrappedModel {
 public:
  Ill(std::unique_ptr<Model> model, const bool& healed)
      : WrappedModel(std::move(model)), healed_(healed) {}
  Loss loss(const Tensors& hidden, const at::Tensor& targets, double scale,
            const Context& context) override {
    Loss loss = WrappedModel::loss(hidden, targets, scale, context);
    if (context.step != 2 || healed_) return loss;
    loss.sum = std::nan("");
    loss.scaled = loss.scaled * std::nan("");
    return loss;
  }

 private:
  const bool& healed_;
};

Config with_microbatches(Strategy strategy, OnNan on_nan) {
  Config config = small_config();
  config.parallel.strategy = strategy;
  config.batch.micro = 3;  // of 9 on each of two ranks
  config.train.on_nan = on_nan;
  return config;
}

std::unique_ptr<Model> ill_model(const Config& config, const bool& healed) {
  return std::make_unique<Ill>(make_model(config.model.spec, scalar_type(config.parallel.compute)),
                               healed);
}

// The steps after it are those of a run that took the step's samples and made no update of them.
TEST(Trainer, OrSkipsTheUpdate) {
  const std::string folder = temporary_folder();
  for (Strategy strategy : strategies)
    run_ranks(2, [&](World& world) {
      SCOPED_TRACE(name(strategy));
      const Config config = with_microbatches(strategy, OnNan::skip);
      const bool healed = false;
      Trainer trainer(config, borrowed(world), ill_model(config, healed));
      Trainer without(config, borrowed(world));
      for (int step = 0; step < 2; ++step) {
        EXPECT_FALSE(trainer.train_step().skipped);
        without.train_step();
      }
      RunState run = without.run_state();
      run.step += 1;
      run.consumed_samples += config.batch.global;
      without.load(save_checkpoint(without.everyone(), folder + "/" + name(strategy), run,
                                   without.state(), 1));
      const StepMetrics skipped = trainer.train_step();
      EXPECT_TRUE(skipped.skipped);
      EXPECT_FALSE(std::isfinite(skipped.loss));
      for (int step = 0; step < 3; ++step) {
        const StepMetrics found = trainer.train_step(), expected = without.train_step();
        EXPECT_FALSE(found.skipped);
        EXPECT_EQ(found.step, expected.step);
        EXPECT_EQ(found.loss, expected.loss);
        EXPECT_EQ(found.grad_norm, expected.grad_norm);
        EXPECT_EQ(found.lr, expected.lr);
      }
      EXPECT_EQ(trainer.run_state().values["updates"], Value(int64_t{5}));
    });
}

TEST(Trainer, AProgramMayGoOnAfterALossThatIsNotFinite) {
  for (Strategy strategy : strategies)
    run_ranks(2, [&](World& world) {
      SCOPED_TRACE(name(strategy));
      const Config config = with_microbatches(strategy, OnNan::stop);
      bool healed = false;
      Trainer trainer(config, borrowed(world), ill_model(config, healed));
      Trainer well(config, borrowed(world));
      for (int step = 0; step < 2; ++step) trainer.train_step(), well.train_step();
      EXPECT_THROW(trainer.train_step(), Error);
      EXPECT_EQ(trainer.step(), 2);
      healed = true;
      for (int step = 0; step < 2; ++step) {
        const StepMetrics found = trainer.train_step(), expected = well.train_step();
        EXPECT_EQ(found.loss, expected.loss);
        EXPECT_EQ(found.grad_norm, expected.grad_norm);
      }
    });
}

TEST(Trainer, WritesItsRunFolder) {
  const std::string folder = temporary_folder() + "/run";
  Config config = small_config();
  config.train.evaluate_every = 4;
  config.train.log_every = 2;
  losses_of(config, 2, folder);
  EXPECT_TRUE(fs::exists(folder + "/config.toml"));
  EXPECT_TRUE(fs::exists(folder + "/checkpoints/step-3"));
  EXPECT_TRUE(fs::exists(folder + "/checkpoints/step-6"));
  const auto lines = read_lines(folder + "/metrics.jsonl");
  EXPECT_EQ(metric(folder, "step"), (std::vector<double>{1, 2, 4, 6}));
  for (const auto& line : lines) {
    for (const char* field : {"step", "tokens", "peak_memory_bytes"})
      EXPECT_TRUE(line.at(field).is_number_integer()) << field;
    for (const char* field : {"loss", "grad_norm", "lr", "step_ms", "tokens_per_s", "comm_wait_ms"})
      EXPECT_TRUE(line.at(field).is_number()) << field;
    EXPECT_GT(line.at("peak_memory_bytes"), 0);
    EXPECT_GE(line.at("comm_wait_ms"), 0);
    EXPECT_LE(line.at("comm_wait_ms"), 3 * line.at("step_ms").get<double>());
    int64_t gradients = 0;
    for (const auto& [row, bytes] : line.at("comm_bytes").items())
      if (row.find("/gradients") != std::string::npos) gradients += bytes.get<int64_t>();
    EXPECT_GT(gradients, 0) << line;
    EXPECT_EQ(line.contains("validation_loss"), line.at("step") == 4 || line.at("step") == 6);
  }

  // Finished: says so and writes nothing.
  config.train.run_dir = folder;
  fs::remove(folder + "/config.toml");
  run_ranks(2, [&](World& world) {
    Trainer trainer(config, borrowed(world));
    EXPECT_EQ(run_training(trainer, {}), Ending::was_finished);
  });
  EXPECT_EQ(read_lines(folder + "/metrics.jsonl").size(), lines.size());
  EXPECT_FALSE(fs::exists(folder + "/config.toml"));
}

TEST(Trainer, StopsWhereOneRankWasAskedTo) {
  const std::string folder = temporary_folder() + "/run";
  Config config = small_config();
  config.train.run_dir = folder;
  config.train.steps = 100;
  run_ranks(3, [&](World& world) {
    Trainer trainer(config, borrowed(world));
    const auto asked = [&] { return world.info().rank == 1 && trainer.step() == 5 ? 15 : 0; };
    EXPECT_EQ(run_training(trainer, {.stop_requested = asked}), Ending::interrupted);
    EXPECT_EQ(trainer.step(), 5);
  });
  EXPECT_TRUE(fs::exists(folder + "/checkpoints/step-5"));
}

}  // namespace
}  // namespace phalanx::testing
