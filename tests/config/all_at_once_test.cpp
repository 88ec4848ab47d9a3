// Mistakes in a config and rules that it breaks, told together.
#include <gtest/gtest.h>

#include "phalanx/base/error.h"
#include "phalanx/config/load.h"

namespace phalanx {
namespace {

// What check() finds is told too, but for what may follow from the mistakes alone.
TEST(Load, BrokenRulesComeWithTheMistakes) {
  const std::string model =
      "[model]\nhidden_size = 64\nnum_hidden_layers = 2\nnum_attention_heads = 4\n"
      "vocab_size = 256\nmax_position_embeddings = 128\n[data]\nkind = 'synthetic'\n"
      "sequence_length = 128\n";
  const auto refusal = [&](std::string toml, const std::vector<std::string>& overrides,
                           int world_size, ConfigUse use = ConfigUse::training) {
    try {
      parse_config(toml, "run.toml", overrides, world_size, use);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::usage);
      return std::string(error.what());
    }
    return std::string("no error");
  };
  struct Case {
    std::vector<std::string> overrides;
    int world;
    std::vector<std::string> said;
    std::string not_said;
  };
  for (const Case& wrong : std::vector<Case>{
           {{"--train.stepz=1", "--parallel.tp=2"}, 2, {"train.stepz", "parallel.tp = 2"}, "batch"},
           {{"--lr.peek=1", "--batch.global=7"}, 2, {"lr.peek", "batch.global = 7"}, "minimum"},
           {{"--lr.peak=x", "--lr.minimum=1", "--batch.global=7"},
            2,
            {"lr.peak = x", "batch.global = 7"},
            "lr.minimum"},
           {{"--batch.global=x"}, 3, {"batch.global = x is not"}, "multiple"},
           {{"--batch.globl=9"}, 3, {"'batch.globl'"}, "multiple"},
           {{"--train.stepz=1", "--batch.global=7"}, 0, {"train.stepz"}, "multiple"}}) {
    SCOPED_TRACE(::testing::PrintToString(wrong.overrides));
    const std::string all = refusal(model, wrong.overrides, wrong.world);
    for (const auto& fragment : wrong.said) EXPECT_NE(all.find(fragment), std::string::npos) << all;
    EXPECT_EQ(all.find(wrong.not_said), std::string::npos) << all;
  }
  // Sizes that a typo hides, or a file that could not be read, are not missing.
  for (const std::string broken : {"[modle]\nhidden_size = 64\n[data]\nkind = 'synthetic'\n",
                                   "base = 'none.toml'\n", "[model\n"}) {
    const std::string all = refusal(broken, {}, 1);
    EXPECT_EQ(all.find('\n'), std::string::npos) << all;
  }
  // Only with a mistake; for an evaluation by its own rules.
  EXPECT_EQ(refusal(model, {"--batch.global=7"}, 2), "no error");
  const std::string evaluation =
      refusal(model, {"--lr.peek=1", "--data.kind=tokens"}, 3, ConfigUse::evaluation);
  EXPECT_NE(evaluation.find("data.validation is missing"), std::string::npos) << evaluation;
  EXPECT_EQ(evaluation.find("multiple"), std::string::npos) << evaluation;
}

}  // namespace
}  // namespace phalanx
