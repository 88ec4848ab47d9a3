#include "phalanx/spec/model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>

#include "phalanx/base/error.h"
#include "phalanx/spec/huggingface.h"

namespace phalanx {
namespace {

ModelSpec gpt2_small() {
  ModelSpec model;
  model.hidden_size = 768;
  model.num_hidden_layers = model.num_attention_heads = model.num_key_value_heads = 12;
  model.intermediate_size = 3072;
  model.vocab_size = 50257;
  model.max_position_embeddings = 1024;
  return model;
}

// What transformers writes for the smallest GPT-2, shortened.
const char* const small_config = R"({
  "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1,
  "bos_token_id": 50256, "embd_pdrop": 0.1, "initializer_range": 0.02,
  "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12,
  "n_inner": null, "n_layer": 12, "n_positions": 1024, "reorder_and_upcast_attn": false,
  "resid_pdrop": 0.1, "scale_attn_weights": true, "vocab_size": 50257})";

std::string message(const std::function<void()>& call, ExitCode code = ExitCode::usage) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code);
    return error.what();
  }
  return "no error";
}

TEST(Model, TableOfGpt2Small) {
  const ModelSpec model = gpt2_small();
  EXPECT_EQ(parameter_count(model), 124'439'808);  // as published
  const auto table = blocks(model);
  ASSERT_EQ(table.size(), 13u);
  EXPECT_EQ(table[0].name, "root");
  EXPECT_EQ(table[12].name, "blocks.11");

  auto names = [](const BlockSpec& block) {
    std::vector<std::string> list;
    for (const auto& parameter : block.parameters) list.push_back(parameter.name);
    return join(list, " ");
  };
  EXPECT_EQ(names(table[0]), "wte.weight wpe.weight ln_f.weight ln_f.bias");
  EXPECT_EQ(names(table[3]),
            "blocks.2.ln_1.weight blocks.2.ln_1.bias blocks.2.attn.c_attn.weight "
            "blocks.2.attn.c_attn.bias blocks.2.attn.c_proj.weight blocks.2.attn.c_proj.bias "
            "blocks.2.ln_2.weight blocks.2.ln_2.bias blocks.2.mlp.c_fc.weight "
            "blocks.2.mlp.c_fc.bias blocks.2.mlp.c_proj.weight blocks.2.mlp.c_proj.bias");

  std::set<std::string> seen;
  for (const auto& block : table)
    for (const auto& parameter : block.parameters) {
      ASSERT_EQ(parameter.pieces.size(), 1u);
      const Piece& piece = parameter.pieces[0];
      EXPECT_TRUE(seen.insert(piece.name).second) << piece.name;
      EXPECT_EQ(piece.global_shape, parameter.local_shape);
      EXPECT_EQ(piece.name.substr(0, 12), "transformer.");
      EXPECT_EQ(parameter.decay, parameter.local_shape.size() == 2) << parameter.name;
    }
  const ParameterSpec& fused = table[1].parameters[2];
  EXPECT_EQ(fused.pieces[0].name, "transformer.h.0.attn.c_attn.weight");
  EXPECT_EQ(fused.local_shape, (std::vector<int64_t>{768, 2304}));
  EXPECT_EQ(table[1].parameters[10].local_shape, (std::vector<int64_t>{3072, 768}));

  EXPECT_DOUBLE_EQ(fused.init.value, 0.02);
  for (size_t residual : {4, 10})
    EXPECT_DOUBLE_EQ(table[1].parameters[residual].init.value, 0.02 / std::sqrt(24.0));
  EXPECT_EQ(table[1].parameters[0].init.rule, Init::Rule::constant);
  EXPECT_EQ(table[1].parameters[0].init.value, 1);
  EXPECT_EQ(table[1].parameters[1].init.value, 0);
  EXPECT_EQ(table[1].parameters[3].init.rule, Init::Rule::constant);
  EXPECT_EQ(table[1].parameters[3].init.value, 0);
}

TEST(Model, HeadIsTiedOrAParameter) {
  ModelSpec model = gpt2_small();
  ASSERT_EQ(tied_parameters(model).size(), 1u);
  EXPECT_EQ(tied_parameters(model)[0].name, "lm_head.weight");
  EXPECT_EQ(tied_parameters(model)[0].tied_to, "wte.weight");
  model.tie_word_embeddings = false;
  EXPECT_TRUE(tied_parameters(model).empty());
  EXPECT_EQ(parameter_count(model), 124'439'808 + 50257 * 768);
  EXPECT_EQ(blocks(model)[0].parameters.back().pieces[0].name, "lm_head.weight");
}

TEST(Model, FlopsPerToken) {
  ModelSpec model = gpt2_small();
  // 12 layers of 12 x 768^2 weights, and the head.
  const double weights = 12.0 * 12 * 768 * 768 + 50257.0 * 768;
  EXPECT_DOUBLE_EQ(flops_per_token(model, 1024), 6 * weights + 6.0 * 12 * 1024 * 768);
  const double tied = flops_per_token(model, 64);
  model.tie_word_embeddings = false;
  EXPECT_DOUBLE_EQ(flops_per_token(model, 64), tied);
}

TEST(Model, RulesNameKeyValueAndFix) {
  EXPECT_TRUE(check(gpt2_small()).empty());
  using Change = std::function<void(ModelSpec&)>;
  const std::vector<std::tuple<Change, std::string, std::string>> cases = {
      {[](auto& m) { m.kind = "llama"; }, "model.kind", "\"llama\" is not available"},
      {[](auto& m) { m.hidden_size = 0; }, "model.hidden_size", "= 0 is not a size"},
      {[](auto& m) { m.num_hidden_layers = -1; }, "model.num_hidden_layers", "= -1"},
      {[](auto& m) { m.intermediate_size = 0; }, "model.intermediate_size", "at least 1"},
      {[](auto& m) { m.vocab_size = 0; }, "model.vocab_size", "at least 1"},
      {[](auto& m) { m.max_position_embeddings = 0; }, "model.max_position_embeddings", "least 1"},
      {[](auto& m) { m.hidden_size = 3 << 20; }, "model.hidden_size", "at most 1048576"},
      {[](auto& m) { m.num_hidden_layers = 1 << 15; }, "model.num_hidden_layers", "most 16384"},
      {[](auto& m) { m.intermediate_size = 1 << 23; }, "model.intermediate_size", "too large"},
      {[](auto& m) { m.vocab_size = INT64_MAX; }, "model.vocab_size", "too large"},
      {[](auto& m) { m.max_position_embeddings = 1 << 27; }, "model.max_position_embeddings",
       "too large"},
      {[](auto& m) { m.num_attention_heads = m.num_key_value_heads = 7; },
       "model.num_attention_heads", "= 7 does not divide model.hidden_size = 768"},
      {[](auto& m) { m.num_key_value_heads = 4; }, "model.num_key_value_heads", "leave it out"},
      {[](auto& m) { m.attn_pdrop = 1; }, "model.attn_pdrop", "0 <= p < 1"},
      {[](auto& m) { m.resid_pdrop = -0.1; }, "model.resid_pdrop", "-0.1"},
      {[](auto& m) { m.embd_pdrop = NAN; }, "model.embd_pdrop", "nan"},
      {[](auto& m) { m.layer_norm_epsilon = 0; }, "model.layer_norm_epsilon", "above 0"},
      {[](auto& m) { m.initializer_range = INFINITY; }, "model.initializer_range", "above 0"},
  };
  for (const auto& [change, key, fragment] : cases) {
    ModelSpec model = gpt2_small();
    change(model);
    const auto found = check(model);
    ASSERT_EQ(found.size(), 1u) << key;
    EXPECT_EQ(found[0].key, key);
    EXPECT_NE(found[0].sentence.find(fragment), std::string::npos) << found[0].sentence;
    EXPECT_EQ(message([&] { blocks(model); }), found[0].sentence);
  }
  EXPECT_GE(check(ModelSpec{}).size(), 6u);  // all at once
}

TEST(HuggingFace, ReadsWhatTransformersWrites) {
  ModelSpec expected = gpt2_small();
  expected.attn_pdrop = expected.resid_pdrop = expected.embd_pdrop = 0.1;
  EXPECT_EQ(parse_huggingface_config(small_config, "config.json"), expected);
}

TEST(HuggingFace, SizesBeyondCountingAndPathsThatCannotBeAreRefused) {
  auto config = nlohmann::json::parse(small_config);
  for (int64_t size : {INT64_MAX, INT64_MIN, INT64_MAX / 4 + 1}) {
    config["n_embd"] = size;
    const auto said = message([&] { parse_huggingface_config(config.dump(), "config.json"); });
    EXPECT_NE(said.find(text("model.hidden_size = ", size, " is ")), std::string::npos) << said;
  }
  const std::string long_name(5000, 'x');
  const auto said = message([&] { read_huggingface_config(long_name); });
  EXPECT_NE(said.find("File name too long"), std::string::npos) << said;
}

TEST(HuggingFace, WritesWhatItReads) {
  ModelSpec model = gpt2_small();
  model.intermediate_size = 100;
  model.layer_norm_epsilon = 1e-6;
  model.attn_pdrop = 0.25, model.resid_pdrop = 0.5, model.embd_pdrop = 0.125;
  model.tie_word_embeddings = false;
  model.initializer_range = 0.01;
  EXPECT_EQ(parse_huggingface_config(huggingface_config(model), "config.json"), model);
  EXPECT_EQ(huggingface_config(model).find("eos_token_id"), std::string::npos);
  model.vocab_size = 256;
  EXPECT_NE(huggingface_config(model).find("\"eos_token_id\": null"), std::string::npos);
}

TEST(HuggingFace, RefusesByName) {
  auto refuse = [](const std::string& key, nlohmann::json value) {
    auto object = nlohmann::json::parse(small_config);
    object[key] = std::move(value);
    return message([&] { parse_huggingface_config(object.dump(), "m/config.json"); });
  };
  const std::vector<std::tuple<std::string, nlohmann::json, std::string>> cases = {
      {"model_type", "llama", "m/config.json: \"model_type\" = \"llama\" is not available"},
      {"activation_function", "relu", "\"activation_function\" = \"relu\" is not available"},
      {"scale_attn_weights", false, "\"scale_attn_weights\" = false is not available"},
      {"scale_attn_by_inverse_layer_idx", true, "\"scale_attn_by_inverse_layer_idx\" = true"},
      {"reorder_and_upcast_attn", true, "\"reorder_and_upcast_attn\" = true"},
      {"add_cross_attention", true, "\"add_cross_attention\" = true"},
      {"pruned_heads", {{"0", {1}}}, "\"pruned_heads\""},
      {"quantization_config", {{"bits", 4}}, "\"quantization_config\""},
      {"n_embd", "768", "\"n_embd\" = \"768\" is not an integer"},
      {"n_embd", nullptr, "\"n_embd\" is missing"},
      {"n_head", 7, "m/config.json: model.num_attention_heads = 7 does not divide"},
      {"attn_pdrop", "a", "\"attn_pdrop\" = \"a\" is not a number"},
      {"tie_word_embeddings", 1, "\"tie_word_embeddings\" = 1 is not true or false"},
  };
  for (const auto& [key, value, fragment] : cases) {
    const std::string sentence = refuse(key, value);
    EXPECT_NE(sentence.find(fragment), std::string::npos) << sentence;
  }
  EXPECT_NE(message([] { parse_huggingface_config("{\"a\": ", "f"); }).find("f is not JSON"),
            std::string::npos);
  EXPECT_NE(message([] { parse_huggingface_config("[]", "f"); }).find("not a JSON object"),
            std::string::npos);
  EXPECT_NE(message([] { read_huggingface_config("/nowhere"); }).find("/nowhere/config.json"),
            std::string::npos);
}

}  // namespace
}  // namespace phalanx
