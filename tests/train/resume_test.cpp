// Going on elsewhere: other ranks, other settings.
#include <gtest/gtest.h>

#include <cmath>

#include "phalanx/base/files.h"
#include "phalanx/base/text.h"
#include "phalanx/checkpoint/checkpoint.h"
#include "phalanx/config/check.h"
#include "phalanx/data/token_file.h"
#include "phalanx/train/run.h"
#include "phalanx/train/trainer.h"
#include "tests/support/ranks.h"
#include "tests/support/sentence.h"
#include "tests/train/small_run.h"
#include "tests/train/wrapped_model.h"

namespace phalanx::testing {
namespace {

namespace fs = std::filesystem;
using Row = std::vector<int64_t>;

// Notes the tokens of every row that it trains on.
class Watched final : public WrappedModel {
 public:
  Watched(std::unique_ptr<Model> model, std::vector<Row>& rows)
      : WrappedModel(std::move(model)), rows_(rows) {}
  Tensors embed(const at::Tensor& tokens, const Context& context) override {
    for (int64_t row = 0; row < tokens.size(0); ++row) {
      const at::Tensor ids = tokens[row].contiguous();
      rows_.emplace_back(ids.data_ptr<int64_t>(), ids.data_ptr<int64_t>() + ids.numel());
    }
    return WrappedModel::embed(tokens, context);
  }

 private:
  std::vector<Row>& rows_;
};

struct Steps {
  std::vector<double> losses;
  std::vector<std::vector<Row>> rows;  // of all ranks, sorted, by step
};

// Trains from `from` ("": the beginning) to step 8, saving step 3 into `folder` if it comes by.
Steps train(const Config& config, int ranks, const std::string& from, const std::string& folder) {
  make_folder(folder, ExitCode::environment);
  run_ranks(ranks, [&](World& world) {
    std::vector<Row> rows;
    const Config resolved = resolve(config, ranks);
    auto model = std::make_unique<Watched>(
        make_model(resolved.model.spec, scalar_type(resolved.parallel.compute)), rows);
    Trainer trainer(config, borrowed(world), std::move(model));
    if (!from.empty()) trainer.load(from);
    nlohmann::json steps = nlohmann::json::array();
    while (trainer.step() < 8) {
      rows.clear();
      const double loss = trainer.train_step().loss;
      steps.push_back({loss, rows});
      if (trainer.step() == 3) trainer.save(folder, 0);
    }
    std::ofstream(text(folder, "/seen-", world.info().rank)) << steps;
  });
  Steps all;
  for (int rank = 0; rank < ranks; ++rank) {
    const auto steps =
        nlohmann::json::parse(read_file(text(folder, "/seen-", rank), ExitCode::environment));
    all.rows.resize(steps.size());
    for (size_t i = 0; i < steps.size(); ++i) {
      if (rank == 0) all.losses.push_back(steps[i][0]);
      const auto rows = steps[i][1].get<std::vector<Row>>();
      all.rows[i].insert(all.rows[i].end(), rows.begin(), rows.end());
    }
  }
  for (auto& rows : all.rows) std::sort(rows.begin(), rows.end());
  return all;
}

// Two ranks save within the second epoch; one, three and four go on: the same samples in every
// step, none twice, none left out, and the same losses.
TEST(Resume, NoSampleIsRepeatedOrSkippedOnOtherRanks) {
  const std::string folder = temporary_folder();
  Config config = small_config();
  config.batch.global = 12;
  config.data.samples = 30;
  config.train.steps = 8;
  const Steps straight = train(config, 2, "", folder + "/straight");
  ASSERT_EQ(straight.losses.size(), 8u);
  std::vector<Row> epoch;  // steps 1 and 2 and half of step 3: every sample once
  for (int step : {0, 1})
    epoch.insert(epoch.end(), straight.rows[step].begin(), straight.rows[step].end());
  std::sort(epoch.begin(), epoch.end());
  EXPECT_EQ(std::unique(epoch.begin(), epoch.end()), epoch.end()) << "samples are told apart";
  for (int ranks : {1, 3, 4})
    for (int64_t micro : {0, 1}) {
      SCOPED_TRACE(text(ranks, " ranks, micro ", micro));
      Config other = config;
      other.batch.micro = micro;
      other.parallel.strategy = ranks == 3 ? Strategy::none : Strategy::optim_grads_params;
      const Steps rest =
          train(other, ranks, folder + "/straight/step-3", text(folder, "/", ranks, "-", micro));
      ASSERT_EQ(rest.losses.size(), 5u);
      for (size_t i = 0; i < rest.losses.size(); ++i) {
        EXPECT_NEAR(rest.losses[i], straight.losses[3 + i], 1e-9 * straight.losses[3 + i]);
        EXPECT_TRUE(rest.rows[i] == straight.rows[3 + i]) << "other samples in step " << 4 + i;
      }
    }
}

void run(Config config, const std::string& run_dir,
         Transport transport = Transport::shared_memory) {
  config.train.run_dir = run_dir;
  run_ranks(2,
            [&](World& world) {
              Trainer trainer(config, borrowed(world));
              EXPECT_EQ(run_training(trainer, {}), Ending::finished);
            },
            {.transport = transport});
}

// How a run saves says nothing about what it loads.
TEST(Resume, LoadingDoesNotDependOnHowTheRunSaves) {
  const std::string folder = temporary_folder();
  Config config = small_config();
  config.lr.decay_steps = 6;
  run(config, folder + "/straight");
  const auto expected = metric(folder + "/straight", "loss");
  const auto rest_after = [&](const std::string& label, const std::function<void(Config&)>& change,
                              Transport transport = Transport::shared_memory) {
    SCOPED_TRACE(label);
    const std::string run_dir = folder + "/" + label;
    Config first = config;
    first.train.steps = 3;
    run(first, run_dir);
    Config second = config;
    change(second);
    run(second, run_dir, transport);
    EXPECT_EQ(metric(run_dir, "loss"), expected);
    return fs::exists(run_dir + "/checkpoints/step-6");
  };
  EXPECT_FALSE(rest_after("saves_no_more", [](Config& c) { c.checkpoint.every = 0; }));
  EXPECT_TRUE(rest_after("verifies", [](Config& c) { c.checkpoint.verify_hashes = true; }));
  EXPECT_TRUE(rest_after("keeps_one", [](Config& c) { c.checkpoint.keep = 1; }));
  EXPECT_TRUE(rest_after("another_transport", [](Config&) {}, Transport::gloo));
}

// What a load says on stderr.
std::string said_by_load(const Config& config, World& world, const std::string& path) {
  Trainer trainer(config, borrowed(world));
  ::testing::internal::CaptureStderr();
  trainer.load(path);
  return ::testing::internal::GetCapturedStderr();
}

// The position in the data is a number of samples, which are others then.
TEST(Resume, WarnsOfOtherData) {
  const std::string folder = temporary_folder();
  std::vector<std::string> files;
  for (int64_t seed : {3, 5}) {
    files.push_back(text(folder, "/", seed, ".tokens"));
    TokenFileWriter writer(files.back(), "byte", 256);
    std::vector<int64_t> ids(300);
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = int64_t(i) * seed % 251;
    writer.add_document(ids);
    writer.finish();
  }
  Config tokens = small_config();
  tokens.model.spec.vocab_size = 256;
  tokens.data.kind = DataKind::tokens;
  tokens.data.train = {files[0]};
  struct Case {
    std::function<void(Config&)> change;
    std::vector<std::string> said;
  };
  const std::vector<Case> cases = {
      {[](Config& c) { c.batch.micro = 2, c.train.seed = 7; }, {}},
      {[](Config& c) { c.data.seed = 1; }, {"data.seed was 0 and is 1"}},
      {[](Config& c) { c.data.sequence_length = 6; }, {"data.sequence_length was 7 and is 6"}},
      {[](Config& c) { c.data.samples = 51; },
       {"data.contents was synthetic, 50 samples", "and is synthetic, 51 samples"}},
      {[&](Config& c) { c.data.train.push_back(files[1]); },
       {"data.contents was 1 file, 300 tokens", "and is 2 files, 600 tokens"}},
      {[&](Config& c) { c.data.train = {files[1]}; },
       {"data.contents was 1 file, 300 tokens, 42 samples of 7, hash"}}};
  run_ranks(1, [&](World& world) {
    for (size_t i = 0; i < cases.size(); ++i) {
      SCOPED_TRACE(i);
      Config config = i < 4 ? small_config() : tokens;
      Trainer trainer(config, borrowed(world));
      trainer.train_step();
      const std::string path = trainer.save(text(folder, "/", i), 0);
      EXPECT_EQ(said_by_load(config, world, path), "");
      cases[i].change(config);
      const std::string said = said_by_load(config, world, path);
      EXPECT_EQ(said.empty(), cases[i].said.empty()) << said;
      expect_contains(said, cases[i].said);
      if (!said.empty()) expect_contains(said, {"the data is not that of " + path});

      RunState run = trainer.run_state();  // as it was saved before these were
      run.step = 2;
      std::erase_if(run.values, [](const auto& value) { return value.first.starts_with("data."); });
      const std::string older =
          save_checkpoint(trainer.everyone(), text(folder, "/", i), run, trainer.state(), 0);
      EXPECT_EQ(said_by_load(config, world, older), "");
    }
  });
}

// A program that loads and then runs goes on from what it loaded, in another folder too: the
// weights that the config names for a new run do not replace it.
TEST(Resume, ARunGoesOnFromWhatItsProgramLoaded) {
  const std::string folder = temporary_folder();
  Config config = small_config();
  config.checkpoint.every = 1;
  config.checkpoint.keep = 0;
  const auto straight = losses_of(config, 2, folder + "/straight");
  config.train.init_from = folder + "/straight/checkpoints/step-1";
  config.train.run_dir = folder + "/other";
  run_ranks(2, [&](World& world) {
    Trainer trainer(config, borrowed(world));
    trainer.load(folder + "/straight/checkpoints/step-3");
    EXPECT_EQ(run_training(trainer, {}), Ending::finished);
  });
  EXPECT_EQ(metric(folder + "/other", "loss"),
            (std::vector<double>{straight.begin() + 3, straight.end()}));
}

TEST(Resume, AfterAFailedLoadATrainerOnlyLoads) {
  const std::string folder = temporary_folder();
  Config config = small_config();
  config.train.steps = 1;
  config.lr.warmup_steps = 0;
  losses_of(config, 1, folder + "/run");
  config.model.spec.num_hidden_layers = 2;
  run_ranks(1, [&](World& world) {
    Trainer trainer(config, borrowed(world));
    trainer.train_step();
    const std::string own = trainer.save(folder + "/own", 0);
    EXPECT_THROW(trainer.load(folder + "/run"), Error) << "it has another layer";
    EXPECT_FALSE(trainer.begun());
    EXPECT_THROW(trainer.train_step(), Error);
    trainer.load(own);
    EXPECT_EQ(trainer.step(), 1);
    EXPECT_TRUE(std::isfinite(trainer.train_step().loss));
  });
}

// A layer more than the checkpoint has: strict by default, with patterns it keeps its values.
TEST(Resume, AllowsWhatThePatternsName) {
  const std::string folder = temporary_folder();
  Config config = small_config();
  config.train.steps = 3;
  run(config, folder + "/small");
  Config larger = config;
  larger.model.spec.num_hidden_layers = 4;
  larger.train.resume = folder + "/small/checkpoints/step-3";
  const auto loaded = [&](const Config& as) {
    run_ranks(2, [&](World& world) {
      Trainer trainer(as, borrowed(world));
      trainer.load(larger.train.resume);
      EXPECT_EQ(trainer.step(), 3);
      EXPECT_TRUE(std::isfinite(trainer.train_step().loss));
    });
  };
  Config allowed = larger, smaller = config;
  allowed.checkpoint.allow_missing = {"transformer.h.3.*"};
  loaded(allowed);
  smaller.model.spec.num_hidden_layers = 2;
  smaller.checkpoint.allow_unexpected = {"transformer.h.2.*"};
  loaded(smaller);
  run_ranks(2, [&](World& world) {
    Trainer trainer(larger, borrowed(world));
    try {
      trainer.load(larger.train.resume);
      ADD_FAILURE() << "a missing layer was accepted";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("h.3.attn"), std::string::npos) << error.what();
    }
  });
}

}  // namespace
}  // namespace phalanx::testing
