// Going on elsewhere: other ranks, other settings.
#include <gtest/gtest.h>

#include <cmath>

#include "phalanx/base/files.h"
#include "phalanx/base/text.h"
#include "phalanx/checkpoint/checkpoint.h"
#include "phalanx/config/check.h"
#include "phalanx/train/run.h"
#include "phalanx/train/trainer.h"
#include "tests/support/ranks.h"
#include "tests/train/small_run.h"

namespace phalanx::testing {
namespace {

namespace fs = std::filesystem;
using Row = std::vector<int64_t>;

// The model of a spec, which notes the tokens of every row that it trains on.
class Watched final : public Model {
 public:
  Watched(std::unique_ptr<Model> model, std::vector<Row>& rows)
      : model_(std::move(model)), rows_(rows) {}
  const ModelSpec& spec() const override { return model_->spec(); }
  std::vector<Parameter> root_parameters() const override { return model_->root_parameters(); }
  int block_count() const override { return model_->block_count(); }
  Block& block(int index) override { return model_->block(index); }
  Tensors embed(const at::Tensor& tokens, const Context& context) override {
    for (int64_t row = 0; row < tokens.size(0); ++row) {
      const at::Tensor ids = tokens[row].contiguous();
      rows_.emplace_back(ids.data_ptr<int64_t>(), ids.data_ptr<int64_t>() + ids.numel());
    }
    return model_->embed(tokens, context);
  }
  Loss loss(const Tensors& hidden, const at::Tensor& targets, double scale,
            const Context& context) override {
    return model_->loss(hidden, targets, scale, context);
  }
  at::Tensor logits(const Tensors& hidden, const Context& context) override {
    return model_->logits(hidden, context);
  }
  at::Tensor decode(const at::Tensor& tokens, DecodeCache& cache) override {
    return model_->decode(tokens, cache);
  }

 private:
  std::unique_ptr<Model> model_;
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
