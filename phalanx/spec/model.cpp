#include "phalanx/spec/model.h"

#include <cmath>

#include "phalanx/base/error.h"

namespace phalanx {
namespace {

// Collects the parameters of one block under its name and Hugging Face's.
struct Table {
  std::string prefix, hf_prefix;
  std::vector<ParameterSpec> parameters;

  void add(const std::string& name, std::vector<int64_t> shape, Kind kind, Init init) {
    parameters.push_back(
        whole_parameter(prefix + name, hf_prefix + name, std::move(shape), kind, init));
  }
  void norm(const std::string& name, int64_t size) {
    add(name + ".weight", {size}, Kind::norm, {Init::Rule::constant, 1});
    add(name + ".bias", {size}, Kind::norm, {Init::Rule::constant, 0});
  }
  void linear(const std::string& name, int64_t in, int64_t out, double deviation) {
    add(name + ".weight", {in, out}, Kind::weight, {Init::Rule::normal, deviation});
    add(name + ".bias", {out}, Kind::bias, {Init::Rule::constant, 0});
  }
};

BlockSpec root_of(const ModelSpec& model) {
  const Init normal{Init::Rule::normal, model.initializer_range};
  Table table{"", "transformer.", {}};
  table.add("wte.weight", {model.vocab_size, model.hidden_size}, Kind::embedding, normal);
  table.add("wpe.weight", {model.max_position_embeddings, model.hidden_size}, Kind::embedding,
            normal);
  table.norm("ln_f", model.hidden_size);
  if (!model.tie_word_embeddings) {
    table.hf_prefix.clear();
    table.add("lm_head.weight", {model.vocab_size, model.hidden_size}, Kind::weight, normal);
  }
  return {"root", std::move(table.parameters)};
}

BlockSpec layer_of(const ModelSpec& model, int64_t layer) {
  const int64_t hidden = model.hidden_size;
  const double deviation = model.initializer_range;
  // GPT-2 scales what ends on the residual stream, which 2 x layers projections add to.
  const double residual = deviation / std::sqrt(2 * static_cast<double>(model.num_hidden_layers));
  Table table{text("blocks.", layer, "."), text("transformer.h.", layer, "."), {}};
  table.norm("ln_1", hidden);
  table.linear("attn.c_attn", hidden, 3 * hidden, deviation);
  table.linear("attn.c_proj", hidden, hidden, residual);
  table.norm("ln_2", hidden);
  table.linear("mlp.c_fc", hidden, model.intermediate_size, deviation);
  table.linear("mlp.c_proj", model.intermediate_size, hidden, residual);
  return {text("blocks.", layer), std::move(table.parameters)};
}

}  // namespace

std::vector<Violation> check(const ModelSpec& model) {
  std::vector<Violation> found;
  auto rule = [&](bool holds, const char* key, const std::string& sentence) {
    if (!holds) found.push_back({text("model.", key), text("model.", key, " = ", sentence)});
    return holds;
  };
  auto size = [&](const char* key, int64_t value, int64_t most) {
    return rule(value >= 1, key, text(value, " is not a size; give at least 1")) &&
           rule(value <= most, key, text(value, " is too large; give at most ", most));
  };
  if (!rule(model.kind == "gpt2", "kind",
            text("\"", model.kind, "\" is not available in this version; use \"gpt2\"")))
    return found;
  const bool hidden = size("hidden_size", model.hidden_size, most_width);
  const bool heads = size("num_attention_heads", model.num_attention_heads, most_width);
  size("num_hidden_layers", model.num_hidden_layers, most_layers);
  size("intermediate_size", model.intermediate_size, most_inner_width);
  size("vocab_size", model.vocab_size, most_tokens);
  size("max_position_embeddings", model.max_position_embeddings, most_positions);
  if (hidden && heads)
    rule(model.hidden_size % model.num_attention_heads == 0, "num_attention_heads",
         text(model.num_attention_heads, " does not divide model.hidden_size = ", model.hidden_size,
              "; choose a divisor"));
  if (heads)
    rule(model.num_key_value_heads == model.num_attention_heads, "num_key_value_heads",
         text(model.num_key_value_heads, " differs from model.num_attention_heads = ",
              model.num_attention_heads, ", which gpt2 cannot do; leave it out"));
  for (auto [key, value] : {std::pair{"attn_pdrop", model.attn_pdrop},
                            {"resid_pdrop", model.resid_pdrop},
                            {"embd_pdrop", model.embd_pdrop}})
    rule(value >= 0 && value < 1, key, text(value, " is not a dropout; give 0 <= p < 1"));
  rule(std::isfinite(model.layer_norm_epsilon) && model.layer_norm_epsilon > 0,
       "layer_norm_epsilon", text(model.layer_norm_epsilon, " must be above 0; 1e-5 is usual"));
  rule(std::isfinite(model.initializer_range) && model.initializer_range > 0, "initializer_range",
       text(model.initializer_range, " must be above 0; 0.02 is usual"));
  return found;
}

std::vector<BlockSpec> blocks(const ModelSpec& model) {
  for (const Violation& violation : check(model)) fail(ExitCode::usage, violation.sentence);
  std::vector<BlockSpec> list = {root_of(model)};
  for (int64_t layer = 0; layer < model.num_hidden_layers; ++layer)
    list.push_back(layer_of(model, layer));
  return list;
}

std::vector<ParameterSpec> tied_parameters(const ModelSpec& model) {
  if (!model.tie_word_embeddings) return {};
  ParameterSpec head =
      whole_parameter("lm_head.weight", "lm_head.weight", {model.vocab_size, model.hidden_size},
                      Kind::embedding, {Init::Rule::normal, model.initializer_range});
  head.tied_to = "wte.weight";
  return {head};
}

int64_t parameter_count(const ModelSpec& model) {
  int64_t count = 0;
  for (const BlockSpec& block : blocks(model))
    for (const ParameterSpec& parameter : block.parameters)
      count += element_count(parameter.local_shape);
  return count;
}

double flops_per_token(const ModelSpec& model, int64_t sequence_length) {
  int64_t weights = model.vocab_size * model.hidden_size;  // the head, tied or not
  for (const BlockSpec& block : blocks(model))
    if (block.name != "root")
      for (const ParameterSpec& parameter : block.parameters)
        if (parameter.kind == Kind::weight) weights += element_count(parameter.local_shape);
  return 6.0 * static_cast<double>(weights) +
         6.0 * static_cast<double>(model.num_hidden_layers * sequence_length * model.hidden_size);
}

}  // namespace phalanx
