#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "phalanx/spec/parameter.h"
#include "phalanx/spec/violation.h"

namespace phalanx {

// The largest sizes that check() accepts: products of them that are counted fit into 64 bits.
inline constexpr int64_t most_width = 1 << 20;  ///< hidden_size, num_attention_heads
inline constexpr int64_t most_inner_width = 1 << 22;
inline constexpr int64_t most_layers = 1 << 14;
inline constexpr int64_t most_tokens = 1 << 24;  ///< vocab_size
inline constexpr int64_t most_positions = 1 << 26;

/// The sizes of a model, by Hugging Face's names. No LibTorch: the planner reads it too.
struct ModelSpec {
  std::string kind = "gpt2";
  int64_t hidden_size = 0;
  int64_t num_hidden_layers = 0;
  int64_t num_attention_heads = 0;
  int64_t num_key_value_heads = 0;
  int64_t intermediate_size = 0;
  int64_t vocab_size = 0;
  int64_t max_position_embeddings = 0;
  double layer_norm_epsilon = 1e-5;
  double attn_pdrop = 0;   ///< dropout on attention probabilities
  double resid_pdrop = 0;  ///< dropout on what a layer adds to the residual stream
  double embd_pdrop = 0;   ///< dropout on the sum of token and position embeddings
  bool tie_word_embeddings = true;
  double initializer_range = 0.02;

  bool operator==(const ModelSpec&) const = default;
};

/// Every rule that these sizes break; keys are those of the config, "model.hidden_size".
std::vector<Violation> check(const ModelSpec& model);

/// A block and its parameters, in the order in which the model registers and stores them.
struct BlockSpec {
  std::string name;  ///< "root" or "blocks.3"
  std::vector<ParameterSpec> parameters;
};

/// The parameter table, first the root. For GPT-2 (Radford et al. 2019, as Hugging Face stores it):
///   root      wte.weight [vocab, hidden], wpe.weight [positions, hidden], ln_f.{weight,bias}
///             [hidden], and lm_head.weight [vocab, hidden] unless it is tied
///   blocks.N  ln_1.{weight,bias} [hidden], attn.c_attn.{weight [hidden, 3 hidden], bias},
///             attn.c_proj.{weight [hidden, hidden], bias}, ln_2.{weight,bias} [hidden],
///             mlp.c_fc.{weight [hidden, intermediate], bias},
///             mlp.c_proj.{weight [intermediate, hidden], bias}
/// Names are "wte.weight", "blocks.0.attn.c_attn.weight"; pieces "transformer.wte.weight",
/// "transformer.h.0.attn.c_attn.weight". Weights are [in, out] (y = x W + b). Throws Error(usage)
/// if check() finds anything.
std::vector<BlockSpec> blocks(const ModelSpec& model);

/// Tensors that Hugging Face names besides the table because they share the values of a parameter
/// in it: lm_head.weight, tied to wte.weight. They have no storage of their own.
std::vector<ParameterSpec> tied_parameters(const ModelSpec& model);

int64_t parameter_count(const ModelSpec& model);

/// Floating-point operations of forward and backward for one token in a sequence of
/// `sequence_length`: 6 for every weight of a matrix product (the head's included, the embeddings'
/// not) and 6 x layers x sequence_length x hidden for causal attention.
double flops_per_token(const ModelSpec& model, int64_t sequence_length);

}  // namespace phalanx
