#include "phalanx/config/load.h"

#include <gtest/gtest.h>

#include "phalanx/base/error.h"
#include "phalanx/config/keys.h"
#include "tests/config/folder.h"

namespace phalanx {
namespace {

using testing::Folder;

// The error of a config that must be refused.
std::string refusal(const std::string& toml, const std::vector<std::string>& overrides = {}) {
  try {
    parse_config(toml, "run.toml", overrides);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::usage);
    return error.what();
  }
  return "no error";
}

::testing::AssertionResult has(const std::string& whole, const std::string& part) {
  if (whole.find(part) != std::string::npos) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "'" << part << "' is not in: " << whole;
}

TEST(Load, NothingGivenIsTheDefaults) {
  const LoadedConfig loaded = parse_config("", "run.toml");
  EXPECT_EQ(loaded.config, Config());
  EXPECT_EQ(loaded.origins.size(), keys().size());
  EXPECT_EQ(loaded.origins.at("train.steps"), "default");
}

// Default, base, file, command line: each subset of the last three, for every type of key.
TEST(Load, PrecedenceMatrix) {
  struct Row {
    std::string key, base, file, override_value;  // as TOML; the override as its word
    std::vector<ConfigValue> expected;            // default, base, file, command line
  };
  using List = std::vector<std::string>;
  const std::vector<Row> rows = {
      {"train.debug", "true", "false", "true", {false, true, false, true}},
      {"parallel.reshard_after_forward", "false", "true", "false", {true, false, true, false}},
      {"parallel.reshard_after_forward", "false", "false", "false", {true, false, false, false}},
      {"train.steps", "1", "2", "3", {int64_t{100}, int64_t{1}, int64_t{2}, int64_t{3}}},
      {"train.seed", "7", "0", "8", {int64_t{0}, int64_t{7}, int64_t{0}, int64_t{8}}},
      {"lr.peak", "1", "2.5e-3", "1e-2", {3e-4, 1.0, 2.5e-3, 1e-2}},
      {"train.run_dir", "'b'", "\"\"", "c=d", {"runs/default", "b", "", "c=d"}},
      {"parallel.strategy",
       "'none'",
       "'optim'",
       "optim_grads",
       {"optim_grads_params", "none", "optim", "optim_grads"}},
      {"data.train", "['a', 'b']", "[]", "c,d", {List{}, List{"a", "b"}, List{}, List{"c", "d"}}},
      {"data.validation", "'one'", "['x']", "", {List{}, List{"one"}, List{"x"}, List{}}},
  };
  for (const Row& row : rows)
    for (int levels = 0; levels < 8; ++levels) {
      SCOPED_TRACE(text(row.key, " levels ", levels));
      const Folder folder;
      folder.file("base/b.toml", levels & 1 ? row.key + " = " + row.base : "");
      const std::string path = folder.file(
          "run.toml", "base = 'base/b.toml'\n" + (levels & 2 ? row.key + " = " + row.file : ""));
      std::vector<std::string> overrides;
      if (levels & 4) overrides.push_back("--" + row.key + "=" + row.override_value);
      const LoadedConfig loaded = load_config(path, overrides);
      const size_t level = levels & 4 ? 3 : levels & 2 ? 2 : levels & 1 ? 1 : 0;
      const std::vector<std::string> origins = {"default", folder.path() + "/base/b.toml:1",
                                                path + ":2", "command line"};
      EXPECT_EQ(find_key(row.key)->get(loaded.config), row.expected[level]);
      EXPECT_EQ(loaded.origins.at(row.key), origins[level]);
    }
}

TEST(Load, LastOverrideWins) {
  const auto loaded = parse_config("", "run.toml", {"--train.steps=3", "--train.steps=4"});
  EXPECT_EQ(loaded.config.train.steps, 4);
}

TEST(Load, BasesAreRelativeAndChain) {
  const Folder folder;
  folder.file("c.toml", "[train]\nsteps = 1\nseed = 1\nlog_every = 1");
  folder.file("sub/b.toml", "base = '../c.toml'\n[train]\nseed = 2\nlog_every = 2");
  const auto loaded =
      load_config(folder.file("a.toml", "base = 'sub/b.toml'\ntrain.log_every = 3"));
  EXPECT_EQ(loaded.config.train.steps, 1);
  EXPECT_EQ(loaded.config.train.seed, 2);
  EXPECT_EQ(loaded.config.train.log_every, 3);
  EXPECT_EQ(loaded.origins.at("train.steps"), folder.path() + "/c.toml:2");
}

TEST(Load, WrongBases) {
  const Folder folder;
  auto refused = [](const std::string& path) -> std::string {
    try {
      load_config(path);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  const std::string a = folder.file("a.toml", "base = 'b.toml'");
  folder.file("b.toml", "base = 'c.toml'");
  folder.file("c.toml", "\nbase = 'a.toml'");
  EXPECT_TRUE(
      has(refused(a), "c.toml:2:8: base = \"a.toml\" comes back to a file that is being read"));
  EXPECT_TRUE(has(refused(folder.file("self.toml", "base = './self.toml'")), "comes back"));
  EXPECT_TRUE(has(refused(folder.file("m.toml", "base = 'none.toml'")), "none.toml is no file"));
  EXPECT_TRUE(has(refused(folder.file("n.toml", "base = 3")), "n.toml:1:8: base must be a string"));
  EXPECT_TRUE(has(refused(folder.path() + "/nothing.toml"),
                  "nothing.toml: No such file or directory; give the path of"));
  EXPECT_TRUE(has(refused(folder.path()), "Is a directory; give"));
  // A mistake in a base is told with the base's name.
  folder.file("wrong.toml", "[train]\nstepz = 3");
  EXPECT_TRUE(
      has(refused(folder.file("o.toml", "base = 'wrong.toml'")), "wrong.toml:2:1: unknown key"));
}

TEST(Load, UnknownKeysNameTheNearest) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"[batch]\n  globl = 3",
       "run.toml:2:3: unknown key 'batch.globl'; did you mean 'batch.global'"},
      {"[batch]\nstrategy = 'none'",
       "run.toml:2:1: unknown key 'batch.strategy'; did you mean "
       "'parallel.strategy'?"},
      {"[model]\nvocab = 3", "did you mean 'model.vocab_size'?"},
      {"[train]\nx = 1\n", "unknown key 'train.x'; `phalanx config reference` lists"},
      {"\n[trian]\nsteps = 1", "run.toml:2:2: unknown section [trian]; did you mean 'train'?"},
      {"steps = 1", "run.toml:1:1: 'steps' is in no section; did you mean 'train.steps'?"},
      {"foo = 1", "'foo' is in no section; write it below [section]"},
      {"train = 1", "run.toml:1:1: 'train' is a section; write [train]"},
      {"[wire]\nx = 1", "run.toml:1:2: [wire] is not available in this version"},
      {"[parallel]\nschedule = '1f1b'", "2:1: parallel.schedule is not available in this version"},
      {"[train]\nsteps.x = 1", "train.steps is a table"},
  };
  for (const auto& [toml, fragment] : cases) EXPECT_TRUE(has(refusal(toml), fragment));
}

// One typo in every key, in the file and on the command line.
TEST(Load, EveryMisspeltKeyIsRefused) {
  for (const Key& key : keys()) {
    std::string name = key.full_name();
    std::swap(name[name.size() - 1], name[name.size() - 2]);
    if (name == key.full_name()) name += "s";
    if (find_key(name)) continue;
    // Of two-letter names another may be as near.
    const std::string hint =
        key.name.size() > 3 ? "did you mean '" + key.full_name() + "'?" : "did you mean '";
    EXPECT_TRUE(has(refusal(name + " = 1"), hint));
    EXPECT_TRUE(has(refusal("", {"--" + name + "=1"}), hint));
  }
}

TEST(Load, WrongTypesAndRanges) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"[train]\nsteps = '3'", "run.toml:2:9: train.steps = \"3\" is a string, not an integer"},
      {"train.steps = 1e3", "train.steps = 1000.0 is a number, not an integer; write 1000"},
      {"train.steps = 1.5", "train.steps = 1.5 is a number, not an integer; give an integer"},
      {"train.steps = 0", "train.steps = 0 is out of range; accepted: 1 to"},
      {"train.steps = -1", "train.steps = -1 is out of range"},
      {"train.debug = 1", "train.debug = 1 is an integer, not true or false"},
      {"train.debug = 'yes'", "\"yes\" is a string, not true or false"},
      {"lr.peak = '1'", "lr.peak = \"1\" is a string, not a number"},
      {"lr.peak = 0", "lr.peak = 0.0 is out of range; accepted: above 0"},
      {"lr.peak = nan", "out of range"},
      {"lr.peak = inf", "is out of range; accepted: a finite number above 0"},
      {"optimizer.beta1 = 1", "optimizer.beta1 = 1.0 is out of range; accepted: 0 <= x < 1"},
      {"parallel.strategy = 'fsdp'", "is none of none | optim | optim_grads | optim_grads_params"},
      {"parallel.strategy = 'optim_grad'", "; did you mean 'optim_grads'?"},
      {"parallel.strategy = true", "is true or false, not a string; give none | optim"},
      {"data.train = 3", "data.train = 3 is an integer, not a list of strings"},
      {"data.train = ['a', 3]", "data.train is a table, a date or a list of other things"},
      {"train.steps = 2020-01-01", "is a table, a date"},
      {"train.steps = 1\ntrain.steps = 2", "run.toml:2:"},
      {"[train\nsteps = 1", "run.toml:1:"},
  };
  for (const auto& [toml, fragment] : cases) EXPECT_TRUE(has(refusal(toml), fragment));
}

TEST(Load, WrongOverrides) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"--train.steps=abc", "command line: train.steps = abc is not an integer"},
      {"--train.steps=", "train.steps = (nothing) is not an integer"},
      {"--train.steps=1e3", "train.steps = 1000.0 is a number, not an integer; write 1000"},
      {"--train.steps=0", "train.steps = 0 is out of range"},
      {"--train.steps=99999999999999999999", "not an integer"},
      {"--train.debug=1", "train.debug = 1 is not true or false"},
      {"--lr.peak=x", "lr.peak = x is not a number"},
      {"--lr.peak=nan", "out of range"},
      {"--parallel.strategy=fsdp", "is none of"},
      {"--train.steps", "'--train.steps' is no --section.key=value; write --train.steps=VALUE"},
      {"--steps=3", "'--steps=3' is no --section.key=value"},
      {"train.steps=3", "'train.steps=3' is no --section.key=value"},
      {"--train.stepz=3", "command line: unknown key 'train.stepz'; did you mean 'train.steps'?"},
      {"--wire.x=3", "wire.x is not available in this version"},
  };
  for (const auto& [word, fragment] : cases) EXPECT_TRUE(has(refusal("", {word}), fragment));
  for (const std::string bytes :
       {"r\xe4", "\xc0\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe2\x82"})
    for (const std::string key : {"train.run_dir", "data.train"})
      EXPECT_TRUE(
          has(refusal("", {text("--", key, "=", bytes)}), key + " is given bytes that are not"));
  const std::string umlaut = "r\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80";
  EXPECT_EQ(parse_config("", "x", {"--train.run_dir=" + umlaut}).config.train.run_dir, umlaut);
  const std::string apart = refusal("", {"--train.steps", "5", "--lr.peak=1e-3"});
  EXPECT_TRUE(has(apart, "; write --train.steps=5")) << apart;
  EXPECT_EQ(apart.find('\n'), std::string::npos) << apart;
}

TEST(Load, AllErrorsAtOnceInTheOrderOfTheFile) {
  const std::string all = refusal("[train]\nsteps = 0\n[batch]\nglobl = 1\nglobal = 'x'\n",
                                  {"--lr.peak=-1", "--lr.peek=1"});
  const std::vector<std::string> order = {"run.toml:2:9: train.steps", "run.toml:4:1: unknown key",
                                          "run.toml:5:10: batch.global", "lr.peak = -1",
                                          "'lr.peek'"};
  size_t last = 0;
  for (const std::string& fragment : order) {
    const size_t at = all.find(fragment);
    ASSERT_NE(at, std::string::npos) << fragment << "\n" << all;
    EXPECT_GE(at, last);
    last = at;
  }
}

TEST(Load, EncodingsOfOtherSystems) {
  const std::string bom = "\xef\xbb\xbf";
  const auto loaded =
      parse_config(bom + "# comment\r\n[train]\r\nsteps = 3\r\nrun_dir = 'a'\r\n", "run.toml");
  EXPECT_EQ(loaded.config.train.steps, 3);
  EXPECT_EQ(loaded.config.train.run_dir, "a");
  EXPECT_EQ(loaded.origins.at("train.steps"), "run.toml:3");
  EXPECT_TRUE(has(refusal(bom + "[train]\r\nstep = 3"), "run.toml:2:1: unknown key"));
  const std::string utf16 = {'\xff', '\xfe', '[', 0, 'a', 0};
  EXPECT_TRUE(has(refusal(utf16), "run.toml is UTF-16 or binary, not UTF-8; save it as UTF-8"));
  EXPECT_TRUE(has(refusal({'\xfe', '\xff', 0, '['}), "UTF-16"));
  EXPECT_TRUE(has(refusal({'[', 0, 'a', 0}), "UTF-16"));
}

TEST(Load, ModelFromAFolder) {
  const Folder folder;
  folder.file("gpt2/config.json", R"({"model_type": "gpt2", "n_embd": 64, "n_head": 4, "n_layer": 2,
      "n_positions": 32, "vocab_size": 300, "resid_pdrop": 0.3, "attn_pdrop": 0.2})");
  const std::string path = folder.path() + "/gpt2";
  const auto loaded = parse_config("[model]\npath = '" + path + "'\nattn_pdrop = 0.0", "run.toml");
  const ModelSpec& spec = loaded.config.model.spec;
  EXPECT_EQ(spec.hidden_size, 64);
  EXPECT_EQ(spec.intermediate_size, 256);
  EXPECT_EQ(spec.num_key_value_heads, 4);
  EXPECT_EQ(spec.resid_pdrop, 0.3);
  EXPECT_EQ(spec.attn_pdrop, 0);  // an explicit zero is kept
  EXPECT_EQ(loaded.origins.at("model.hidden_size"), path + "/config.json");
  EXPECT_EQ(loaded.origins.at("model.attn_pdrop"), "run.toml:3");
  EXPECT_TRUE(has(refusal("[model]\npath = '" + path + "'\nhidden_size = 3"),
                  "run.toml:3: model.hidden_size is given, and so is model.path"));
  EXPECT_TRUE(has(refusal("model.path = '/nowhere'"), "/nowhere/config.json is no file"));
}

TEST(Load, WhatFollowsFromOtherKeys) {
  const auto loaded = parse_config(
      "[model]\nhidden_size = 64\nnum_attention_heads = 4\n[precision]\ncompute = 'float64'", "r");
  EXPECT_EQ(loaded.config.model.spec.intermediate_size, 256);
  EXPECT_EQ(loaded.config.model.spec.num_key_value_heads, 4);
  EXPECT_EQ(loaded.config.parallel.master, Dtype::float64);
  EXPECT_EQ(loaded.config.parallel.reduce_dtype, Dtype::float64);
  EXPECT_EQ(loaded.origins.at("precision.reduce"), "follows precision.compute");
  const auto explicit_master =
      parse_config("[precision]\ncompute = 'float64'\nmaster = 'float32'", "r");
  EXPECT_EQ(explicit_master.config.parallel.master, Dtype::float32);
}

}  // namespace
}  // namespace phalanx
