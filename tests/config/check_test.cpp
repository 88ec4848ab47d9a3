#include "phalanx/config/check.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <functional>

#include "phalanx/base/error.h"
#include "phalanx/config/keys.h"
#include "phalanx/config/write.h"

namespace phalanx {
namespace {

const char* const minimal = R"(
  [model]
  hidden_size = 64
  num_hidden_layers = 2
  num_attention_heads = 4
  vocab_size = 256
  max_position_embeddings = 128
  [data]
  train = "a.tokens"
  sequence_length = 128
)";

Config with(const std::vector<std::string>& overrides) {
  return parse_config(minimal, "run.toml", overrides).config;
}

std::string sentences(const Config& config, int world_size) {
  std::vector<std::string> list;
  for (const Violation& violation : check(config, world_size)) list.push_back(violation.sentence);
  return join(list, "\n");
}

TEST(Check, MinimalConfigRunsOnAnyNumberOfRanks) {
  for (int world : {1, 2, 4, 8}) {
    const Config config = resolve(with({}), world);
    EXPECT_EQ(config.parallel.degree.dp_shard, world);
    EXPECT_EQ(config.batch.micro, 8 / world);
    EXPECT_EQ(accumulation(config), 1);
    EXPECT_EQ(config.lr.decay_steps, config.train.steps);
    EXPECT_EQ(check(config, world).size(), 0u);
    EXPECT_EQ(parse_config(to_toml(config), "config.toml").config, config);
  }
}

TEST(Check, RulesNameKeyValueAndFix) {
  struct Case {
    std::vector<std::string> overrides;
    int world;
    std::string key, fragment;
  };
  const std::vector<Case> cases = {
      {{"--data.sequence_length=129"},
       1,
       "data.sequence_length",
       "data.sequence_length = 129 is beyond model.max_position_embeddings = 128"},
      {{"--data.train="}, 1, "data.train", "data.train is missing; give token files"},
      {{"--train.evaluate_every=5"}, 1, "train.evaluate_every", "= 5 without data.validation"},
      {{"--model.vocab_size=255"}, 1, "model.vocab_size", "= 255 is less than the 256 ids"},
      {{"--data.kind=synthetic", "--data.train=", "--data.samples=7"},
       1,
       "data.samples",
       "= 7 is less than one"},
      {{"--data.kind=synthetic"}, 1, "data.train", "data.train = [\"a.tokens\"] has no meaning"},
      {{"--data.kind=synthetic", "--data.train=", "--data.validation=b,c"},
       1,
       "data.validation",
       "= [\"b\", \"c\"] has no meaning with data.kind = \"synthetic\"; leave it out"},
      {{"--parallel.strategy=none", "--parallel.prefetch=2"},
       1,
       "parallel.prefetch",
       "= 2 has no meaning with parallel.strategy = \"none\", which keeps parameters whole"},
      {{"--parallel.strategy=optim_grads", "--parallel.reshard_after_forward=false"},
       2,
       "parallel.reshard_after_forward",
       "= false has no meaning"},
      {{"--checkpoint.every=0", "--checkpoint.async=true"},
       1,
       "checkpoint.async",
       "= true has no meaning with nothing to save"},
      {{"--checkpoint.every=0", "--checkpoint.verify_after_save=true"},
       1,
       "checkpoint.verify_after_save",
       "= true has no meaning with nothing to save"},
      {{"--lr.schedule=constant", "--lr.decay_steps=1234567"},
       1,
       "lr.decay_steps",
       "= 1234567 has"},
      {{},
       3,
       "batch.global",
       "batch.global = 8 is no multiple of 3 (data-parallel ranks); give 6 or 9"},
      {{"--batch.micro=3"},
       2,
       "batch.global",
       "batch.global = 8 is no multiple of 3 x 2 (batch.micro x data-parallel ranks) = 6; give 6 "
       "or 12"},
      {{"--batch.global=1"}, 2, "batch.global", "; give 2"},
      {{"--lr.minimum=1"}, 1, "lr.minimum", "lr.minimum = 1.0 is above lr.peak = 3e-04"},
      {{"--lr.warmup_steps=101"}, 1, "lr.warmup_steps", "= 101 is beyond train.steps = 100"},
      {{"--lr.warmup_steps=11", "--lr.decay_steps=10"},
       1,
       "lr.warmup_steps",
       "is beyond lr.decay_steps = 10"},
      {{"--optimizer.momentum=0.9"}, 1, "optimizer.momentum", "= 0.9 has no meaning with"},
      {{"--optimizer.kind=sgd", "--optimizer.beta1=0.8"},
       1,
       "optimizer.beta1",
       "= 0.8 has no meaning with optimizer.kind = \"sgd\"; set momentum instead"},
      {{"--optimizer.kind=sgd", "--optimizer.beta2=0.8"}, 1, "optimizer.beta2", "= 0.8 has no"},
      {{"--optimizer.kind=sgd", "--optimizer.epsilon=1e-6"}, 1, "optimizer.epsilon", "1e-06 has"},
      {{"--lr.schedule=constant", "--lr.minimum=1e-5"},
       1,
       "lr.minimum",
       "= 1e-05 has no meaning with lr.schedule = \"constant\""},
      {{"--lr.schedule=constant", "--lr.decay_steps=50"}, 1, "lr.decay_steps", "= 50 has no"},
      {{"--train.run_dir="}, 1, "train.run_dir", "is empty"},
      {{"--train.run_dir=s3://bucket/run"}, 1, "train.run_dir", "checkpoint.folder"},
      {{"--train.resume="}, 1, "train.resume", "is empty"},
      {{"--checkpoint.folder=s3://"}, 1, "checkpoint.folder", "names no bucket"},
      {{"--checkpoint.folder=s3:///run"}, 1, "checkpoint.folder", "names no bucket"},
      {{"--checkpoint.folder=gs://bucket"}, 1, "checkpoint.folder", "give a folder or s3://"},
      {{"--train.run_dir=r", "--checkpoint.local=./r//checkpoints/"},
       1,
       "checkpoint.local",
       "is where checkpoints lie anyway"},
      {{"--train.resume=s3://"}, 1, "train.resume", "names no bucket"},
      {{"--train.init_from=s3://"}, 1, "train.init_from", "names no bucket"},
      {{"--model.num_attention_heads=5"}, 1, "model.num_attention_heads", "= 5 does not divide"},
      {{"--parallel.dp_shard=4"}, 2, "parallel", "are not the world of 2 ranks"},
      {{"--parallel.tp=2"}, 2, "parallel.tp", "not available in this version"},
      {{"--precision.compute=bfloat16"}, 1, "precision.compute", "not available in this version"},
      {{"--parallel.reduce=step", "--parallel.strategy=none"}, 1, "parallel.reduce", "no meaning"},
  };
  for (const Case& wrong : cases) {
    const Config config = with(wrong.overrides);
    const auto found = check(config, wrong.world);
    ASSERT_EQ(found.size(), 1u) << wrong.key << "\n" << sentences(config, wrong.world);
    EXPECT_EQ(found[0].key, wrong.key);
    EXPECT_NE(found[0].sentence.find(wrong.fragment), std::string::npos) << found[0].sentence;
    EXPECT_THROW(resolve(config, wrong.world), Error);
  }
}

// What a run writes down of itself can be run again.
TEST(Check, AResolvedConfigIsAConfig) {
  for (const std::vector<std::string>& overrides :
       {std::vector<std::string>{"--optimizer.kind=sgd", "--optimizer.momentum=0.9"},
        {"--lr.schedule=constant"}}) {
    const Config resolved = resolve(with(overrides), 2);
    EXPECT_EQ(resolve(parse_config(to_toml(resolved), "config.toml").config, 2), resolved);
  }
}

TEST(Check, AnEvaluationNeedsNoTrainingDataAndNoWholeBatches) {
  const auto found = check(with({"--data.train=", "--lr.minimum=1"}), 3, ConfigUse::evaluation);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].sentence, "data.validation is missing; name token files to evaluate on");
  const Config config = with({"--data.train=", "--data.validation=b.tokens", "--batch.global=8"});
  EXPECT_EQ(resolve(config, 3, ConfigUse::evaluation).batch.micro, 3);
  EXPECT_EQ(resolve(config, 16, ConfigUse::evaluation).batch.micro, 1);
  EXPECT_THROW(resolve(config, 3), Error);
  EXPECT_EQ(check(with({"--data.validation=b.tokens", "--data.sequence_length=999"}), 3,
                  ConfigUse::evaluation)
                .size(),
            1u);
}

// What a program writes into a config keeps to the ranges of the keys, too.
TEST(Check, ValuesThatNoTextCouldGive) {
  struct Case {
    std::function<void(Config&)> change;
    std::string key, value;
  };
  const std::vector<Case> cases = {
      {[](Config& config) { config.train.log_every = 0; }, "train.log_every", "0"},
      {[](Config& config) { config.train.deadline_s = -1; }, "train.deadline_s", "-1.0"},
      {[](Config& config) { config.optimizer.beta1 = 2; }, "optimizer.beta1", "2.0"},
      {[](Config& config) { config.batch.micro = -1; }, "batch.micro", "-1"},
      {[](Config& config) { config.data.tokenizer = "bpe"; }, "data.tokenizer", "\"bpe\""}};
  for (const Case& wrong : cases) {
    Config config = with({});
    wrong.change(config);
    const auto found = check(config, 1);
    ASSERT_EQ(found.size(), 1u) << wrong.key << "\n" << sentences(config, 1);
    EXPECT_EQ(found[0].key, wrong.key);
    EXPECT_EQ(found[0].sentence.find(wrong.key + " = " + wrong.value + " is "), 0u)
        << found[0].sentence;
  }
}

TEST(Check, EverythingAtOnce) {
  const Config config = with({"--data.sequence_length=999", "--batch.global=3", "--lr.minimum=1",
                              "--parallel.cp=2", "--parallel.cut=per_parameter"});
  const auto found = check(config, 4);
  EXPECT_EQ(found.size(), 5u) << sentences(config, 4);
  try {
    resolve(config, 4);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::usage);
    EXPECT_EQ(error.what(), sentences(config, 4));
  }
  const std::string missing = sentences(Config(), 1);
  EXPECT_NE(missing.find("[model] lacks hidden_size, num_hidden_layers, num_attention_heads, "
                         "vocab_size, max_position_embeddings; give them, or model.path"),
            std::string::npos);
  EXPECT_NE(missing.find("data.train is missing"), std::string::npos);
}

// Worlds of 1 to 4 and batches from 1: accepted exactly where the equation holds.
TEST(Check, BatchEquation) {
  for (int world = 1; world <= 4; ++world)
    for (int64_t global = 1; global <= 13; ++global)
      for (int64_t micro = 0; micro <= 5; ++micro) {
        Config config = with({});
        config.batch = {global, micro};
        const bool divides = global % (world * std::max<int64_t>(micro, 1)) == 0;
        EXPECT_EQ(check(config, world).empty(), divides) << sentences(config, world);
        if (!divides) continue;
        const Config resolved = resolve(config, world);
        EXPECT_EQ(accumulation(resolved) * resolved.batch.micro * world, global);
      }
  for (const char* wrong : {"--batch.global=0", "--batch.global=-8", "--batch.micro=-1"})
    EXPECT_THROW(with({wrong}), Error);
}

// Their products are beyond 64 bits: the degrees are what is wrong, and nothing is divided by them.
TEST(Check, HugeDegreesAreRefusedAndNotMultiplied) {
  const auto found = check(with({"--parallel.dp_replicate=1048576", "--parallel.dp_shard=1048576",
                                 "--batch.micro=16777216"}),
                           2);
  for (const Violation& violation : found) EXPECT_NE(violation.key, "batch.global");
  const std::string all =
      sentences(with({"--parallel.dp_replicate=1048576", "--parallel.dp_shard=1048576"}), 2);
  EXPECT_NE(all.find(" = 1099511627776 are not the world of 2 ranks"), std::string::npos) << all;
}

// Degrees of one are legal everywhere, given or not.
TEST(Check, AxesOfSizeOne) {
  for (int bits = 0; bits < 64; ++bits) {
    std::vector<std::string> overrides;
    int bit = 0;
    for (const char* degree : {"dp_replicate", "cp", "tp", "pp", "ep", "etp"})
      if (bits >> bit++ & 1) overrides.push_back(text("--parallel.", degree, "=1"));
    for (int world : {1, 2}) EXPECT_EQ(sentences(with(overrides), world), "");
  }
}

TEST(Check, ReadyConfigsRunOnOneAndTwoRanks) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(PHALANX_SOURCE_DIR "/configs")) {
    SCOPED_TRACE(entry.path().string());
    const LoadedConfig loaded = load_config(entry.path().string());
    for (int world : {1, 2}) EXPECT_EQ(sentences(loaded.config, world), "");
    EXPECT_EQ(parse_config(to_toml(loaded.config), "again.toml").config, loaded.config);
    EXPECT_EQ(parse_config(show(loaded), "again.toml").config, loaded.config);
    ++count;
  }
  EXPECT_GE(count, 3);
  const ModelSpec wide = load_config(PHALANX_SOURCE_DIR "/configs/wide.toml").config.model.spec;
  EXPECT_EQ(wide.num_hidden_layers, 4);
  EXPECT_EQ(wide.hidden_size, 1024);
  EXPECT_EQ(wide.num_attention_heads, 16);
  EXPECT_EQ(wide.vocab_size, 8192);
  EXPECT_EQ(wide.max_position_embeddings, 512);
}

TEST(Write, ShowsOrigins) {
  const auto loaded = parse_config(minimal, "run.toml", {"--train.steps=7"});
  const std::string shown = show(loaded);
  for (const char* fragment : {"hidden_size = 64                 # run.toml:3\n",
                               "steps = 7                        # command line\n",
                               "intermediate_size = 256          # follows model.hidden_size\n",
                               "strategy = \"optim_grads_params\"  # default\n", "\n[train]\n"})
    EXPECT_NE(shown.find(fragment), std::string::npos) << fragment << shown;
  EXPECT_EQ(parse_config(shown, "again.toml").config, loaded.config);
  EXPECT_NE(show(parse_config("", "x")).find("# hidden_size is missing\n"), std::string::npos);
}

TEST(Write, TomlOfValues) {
  const std::vector<std::pair<ConfigValue, std::string>> cases = {
      {false, "false"},
      {int64_t{-3}, "-3"},
      {1.0, "1.0"},
      {1e-5, "1e-05"},
      {1e300, "1e+300"},
      {0.1, "0.1"},
      {"a\"\\\n\x7f", "\"a\\\"\\\\\\u000a\\u007f\""},
      {std::vector<std::string>{}, "[]"},
      {std::vector<std::string>{"a", "b"}, "[\"a\", \"b\"]"}};
  for (const auto& [value, expected] : cases) EXPECT_EQ(to_toml(value), expected);
  for (double value : {1.0 / 3, 3e-4, 5e-324, 1.7976931348623157e308, 123456789.0, 1e15, 1e16}) {
    const auto loaded = parse_config("lr.peak = " + to_toml(ConfigValue(value)), "x");
    EXPECT_EQ(loaded.config.lr.peak, value);
  }
}

}  // namespace
}  // namespace phalanx
