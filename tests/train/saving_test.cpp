// What a training saves and when, and that it goes on from there.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <set>

#include "phalanx/base/files.h"
#include "phalanx/base/text.h"
#include "phalanx/checkpoint/folder.h"
#include "phalanx/config/check.h"
#include "phalanx/train/run.h"
#include "phalanx/train/trainer.h"
#include "tests/support/ranks.h"
#include "tests/train/small_run.h"

namespace phalanx::testing {
namespace {

namespace fs = std::filesystem;

TEST(Trainer, ResumesBitForBitInTheSameLayout) {
  for (Strategy strategy : strategies) {
    SCOPED_TRACE(name(strategy));
    const std::string folder = temporary_folder();
    Config config = small_config(Dtype::float32);
    config.parallel.strategy = strategy;
    config.model.spec.resid_pdrop = 0.1;
    config.lr.decay_steps = 6;
    const auto straight = losses_of(config, 2, folder + "/straight");
    config.train.steps = 3;
    losses_of(config, 2, folder + "/broken");
    config.train.steps = 6;
    const auto broken = losses_of(config, 2, folder + "/broken");  // metrics.jsonl holds both parts
    EXPECT_EQ(straight, broken);
    EXPECT_TRUE(tensors_of(folder + "/straight/checkpoints/step-6") ==
                tensors_of(folder + "/broken/checkpoints/step-6"));
  }
}

// Saved in the background by a slow writer while steps go on: file for file the synchronous
// checkpoint, and the run that goes on from it is the uninterrupted one.
TEST(Trainer, AsynchronousCheckpointsAreTheSynchronousOnesAndResumeBitForBit) {
  for (Strategy strategy : {Strategy::none, Strategy::optim_grads_params}) {
    SCOPED_TRACE(name(strategy));
    const std::string folder = temporary_folder();
    Config config = small_config(Dtype::float32);
    config.parallel.strategy = strategy;
    config.model.spec.resid_pdrop = 0.1;
    config.train.steps = 12;
    config.checkpoint.every = 4;
    config.checkpoint.keep = 0;
    const auto straight = losses_of(config, 2, folder + "/straight");
    config.checkpoint.async = config.checkpoint.verify_after_save = true;
    config.train.run_dir = folder + "/async";
    run_ranks(2, [&](World& world) {
      set_disk_hook([](std::string_view operation, const std::string& path) {
        if (operation == "create" && path.ends_with(".safetensors")) usleep(100'000);
      });
      Trainer trainer(config, borrowed(world));
      EXPECT_EQ(run_training(trainer, {}), Ending::finished);
    });
    EXPECT_EQ(metric(folder + "/async", "loss"), straight);
    for (int step : {4, 8, 12}) {
      const std::string name = text("/checkpoints/step-", step);
      EXPECT_TRUE(tensors_of(folder + "/async" + name) == tensors_of(folder + "/straight" + name));
      const auto manifest = nlohmann::json::parse(
          read_file(folder + "/async" + name + "/manifest.json", ExitCode::checkpoint));
      EXPECT_EQ(manifest["run"]["step"], step);
      EXPECT_EQ(manifest["run"]["consumed_samples"], 18 * step);
      EXPECT_EQ(manifest["run"]["values"]["updates"], step);
    }
    config.train.resume = folder + "/async/checkpoints/step-4";
    const auto rest = losses_of(config, 2, folder + "/rest");
    EXPECT_EQ(rest, (std::vector<double>{straight.begin() + 4, straight.end()}));
    EXPECT_TRUE(tensors_of(folder + "/rest/checkpoints/step-12") ==
                tensors_of(folder + "/straight/checkpoints/step-12"));
  }
}

TEST(Trainer, SavesByStepsByTimeAndOnDemand) {
  struct Case {
    std::function<void(CheckpointConfig&)> change;
    std::vector<int> saved;
  };
  const std::vector<Case> cases = {
      {[](auto& checkpoint) { checkpoint.every = 5; }, {5, 8}},
      {[](auto& checkpoint) { checkpoint.every_minutes = 1e-9; }, {1, 2, 3, 4, 5, 6, 7, 8}},
      {[](auto& checkpoint) { checkpoint.every_minutes = 1e6; }, {8}},
      {[](auto& checkpoint) {
         checkpoint.every = 5, checkpoint.keep_every = 2, checkpoint.keep = 1;
       },
       {2, 4, 6, 8}}};
  for (size_t i = 0; i <= cases.size(); ++i) {
    SCOPED_TRACE(i);
    Config config = small_config();
    config.train.run_dir = temporary_folder() + "/run";
    config.train.steps = 8;
    config.checkpoint.every = 0;
    config.checkpoint.keep = 0;
    const bool on_demand = i == cases.size();
    on_demand ? void(config.checkpoint.every = 1000) : cases[i].change(config.checkpoint);
    run_ranks(2, [&](World& world) {
      Trainer trainer(config, borrowed(world));
      // Rank 1 hears of it first, rank 0 a step later: one save.
      const auto asked = [&] { return trainer.step() >= 3 + (world.info().rank == 0) ? 1 : 0; };
      RunOptions options;
      if (on_demand) options.saves_requested = asked;
      EXPECT_EQ(run_training(trainer, options), Ending::finished);
    });
    std::vector<int> saved;
    for (int step = 0; step <= 8; ++step)
      if (fs::exists(config.train.run_dir + text("/checkpoints/step-", step)))
        saved.push_back(step);
    EXPECT_EQ(saved, on_demand ? (std::vector<int>{3, 8}) : cases[i].saved);
    const auto lines = read_lines(config.train.run_dir + "/metrics.jsonl");
    for (const auto& line : lines) {
      const int before = line["step"].get<int>() - 1;
      EXPECT_EQ(
          line.contains("save_ms"),
          std::find(saved.begin(), saved.end(), before) != saved.end() || (i == 3 && before == 5));
    }
  }
}

// [checkpoint] folder and local: the run goes on from the newer of the two.
TEST(Trainer, SavesInOtherFoldersAndGoesOnFromTheNewer) {
  const std::string folder = temporary_folder();
  Config config = small_config();
  config.checkpoint.folder = folder + "/shared";
  config.checkpoint.local = folder + "/local";
  const auto straight = losses_of(config, 2, folder + "/straight");
  EXPECT_FALSE(fs::exists(folder + "/straight/checkpoints"));
  EXPECT_TRUE(fs::exists(folder + "/shared/step-3/manifest.json"));
  EXPECT_TRUE(
      fs::exists(local_place(folder + "/local", folder + "/shared") + "/step-6/manifest.json"));
  fs::remove_all(folder + "/shared/step-6");  // as if the copy had not been finished
  config.train.steps = 9;
  EXPECT_EQ(losses_of(config, 2, folder + "/straight").size(), 9u);
  EXPECT_TRUE(fs::exists(folder + "/shared/step-9/manifest.json"));
  run_ranks(2,
            [&](World& world) { EXPECT_EQ(evaluate_checkpoint(config, borrowed(world)).step, 9); });
  config.checkpoint.local = "s3://bucket";
  EXPECT_THROW(resolve(config, 1), Error);
}

// A loss that is no number ends all ranks together; a synchronous run would have the checkpoint of
// the step before, and so has one that saves in the background.
TEST(Trainer, TheSaveInFlightIsFinishedWhenTheLossIsNoNumber) {
  const std::string folder = temporary_folder();
  for (bool slow : {false, true}) {
    SCOPED_TRACE(slow);
    Config config = small_config();
    config.train.run_dir = text(folder, "/", slow);
    config.train.steps = 50;
    config.optimizer.kind = OptimizerKind::sgd;
    config.optimizer.clip_norm = 0;
    config.lr.peak = 1e200;
    config.lr.schedule = LrScheduleKind::constant;
    config.checkpoint.every = 1;
    config.checkpoint.async = true;
    run_ranks(2, [&](World& world) {
      if (slow)
        set_disk_hook([](std::string_view operation, const std::string& path) {
          if (operation == "create" && path.ends_with(".safetensors")) usleep(200'000);
        });
      Trainer trainer(config, borrowed(world));
      try {
        run_training(trainer, {});
        ADD_FAILURE() << "every loss was a number";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ExitCode::check_failed) << error.what();
        EXPECT_GT(trainer.step(), 0);
        EXPECT_TRUE(std::string(error.what()).starts_with(text("step ", trainer.step() + 1)))
            << error.what();
        const std::string saved = text("/checkpoints/step-", trainer.step(), "/manifest.json");
        EXPECT_TRUE(fs::exists(config.train.run_dir + saved)) << saved;
      }
    });
  }
}

TEST(Trainer, AnInterruptedRunSaysWhatGoesOn) {
  const std::string folder = temporary_folder();
  Config config = small_config();
  losses_of(config, 1, folder + "/first");
  const std::string path = folder + "/first/checkpoints/step-3";
  for (const auto& resume : {std::string("auto"), std::string("never"), path}) {
    SCOPED_TRACE(resume);
    config.train.resume = resume;
    config.train.steps = 1000;
    config.train.run_dir = temporary_folder();
    const std::string log = config.train.run_dir + "/log";
    run_ranks(1, [&](World& world) {
      const int descriptor = open(log.c_str(), O_CREAT | O_WRONLY, 0644);
      Trainer trainer(config, borrowed(world));
      const auto stop = [&] { return trainer.step() >= 5 ? 15 : 0; };
      EXPECT_EQ(run_training(trainer, {.stop_requested = stop, .descriptor = descriptor}),
                Ending::interrupted);
      close(descriptor);
    });
    const std::string said = read_file(log, ExitCode::environment);
    EXPECT_NE(said.find(resume == "auto" ? "and saved; the same command goes on from there"
                                         : "and saved; continue with --train.resume=auto"),
              std::string::npos)
        << said;
  }
}

TEST(Trainer, GoesOnWithOtherRanksStrategyAndMicrobatch) {
  const std::string folder = temporary_folder();
  Config config = small_config();
  config.lr.decay_steps = 6;
  config.checkpoint.keep = 0;
  const auto expected = losses_of(config, 2, folder + "/straight");
  for (int ranks : {1, 3})
    for (Strategy strategy : strategies) {
      SCOPED_TRACE(text(ranks, " ranks, ", name(strategy)));
      Config other = config;
      other.parallel.strategy = strategy;
      other.batch.micro = 2;
      other.train.resume = folder + "/straight/checkpoints/step-3";
      const auto rest = losses_of(other, ranks, text(folder, "/", ranks, name(strategy)));
      expect_near(rest, {expected.begin() + 3, expected.end()}, 1e-9);
    }
}

}  // namespace
}  // namespace phalanx::testing
