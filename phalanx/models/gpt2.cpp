#include "phalanx/models/gpt2.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>

#include <algorithm>

#include "phalanx/base/error.h"
#include "phalanx/nn/activation.h"
#include "phalanx/nn/attention.h"
#include "phalanx/nn/dropout.h"
#include "phalanx/nn/embedding.h"
#include "phalanx/nn/layer_norm.h"
#include "phalanx/nn/linear.h"

namespace phalanx {
namespace {

std::vector<Parameter> make_parameters(const BlockSpec& block, at::ScalarType compute) {
  std::vector<Parameter> parameters;
  for (const ParameterSpec& spec : block.parameters)
    parameters.push_back(make_parameter(spec, compute));
  return parameters;
}

}  // namespace

Gpt2Block::Gpt2Block(const ModelSpec& spec, std::string name, std::vector<Parameter> parameters)
    : spec_(spec), name_(std::move(name)) {
  require(parameters.size() == parameters_.size(), ExitCode::usage, "a layer of GPT-2 has ",
          parameters_.size(), " parameters, got ", parameters.size());
  std::move(parameters.begin(), parameters.end(), parameters_.begin());
}

std::vector<Parameter> Gpt2Block::parameters() const {
  return {parameters_.begin(), parameters_.end()};
}

Tensors Gpt2Block::forward(const Tensors& inputs, const Context& context) {
  return {run(inputs[0], context, [&](const at::Tensor& packed) {
    return causal_attention(packed, spec_.num_attention_heads, spec_.attn_pdrop,
                            name_ + ".attention", context);
  })};
}

at::Tensor Gpt2Block::decode(const at::Tensor& input, const at::Tensor& cached, int64_t length) {
  Context context;
  context.training = false;
  return run(input, context, [&](const at::Tensor& packed) {
    return cached_attention(packed, cached, length, spec_.num_attention_heads);
  });
}

at::Tensor Gpt2Block::run(const at::Tensor& input, const Context& context,
                          const Attention& attend) {
  const auto& [norm1, norm1_bias, attention, attention_bias, projection, projection_bias, norm2,
               norm2_bias, up, up_bias, down, down_bias] = parameters_;
  const double drop = context.training ? spec_.resid_pdrop : 0, epsilon = spec_.layer_norm_epsilon;

  const NormedStream first = fork_layer_norm(input, norm1, norm1_bias, epsilon);
  const at::Tensor attended = attend(linear(first.normed, attention, attention_bias));
  // Without dropout the bias of a projection is added together with the residual.
  if (drop == 0) {
    const NormedStream second = add_layer_norm(first.stream, linear(attended, projection),
                                               projection_bias, norm2, norm2_bias, epsilon);
    const at::Tensor active = bias_gelu(linear(second.normed, up), up_bias);
    return add_bias(second.stream, linear(active, down), down_bias);
  }
  const at::Tensor branch = dropout(linear(attended, projection, projection_bias), drop,
                                    name_ + ".attention.projection", context);
  const NormedStream second =
      add_layer_norm(first.stream, branch, nullptr, norm2, norm2_bias, epsilon);
  const at::Tensor active = bias_gelu(linear(second.normed, up), up_bias);
  return second.stream + dropout(linear(active, down, down_bias), drop, name_ + ".mlp", context);
}

Gpt2::Gpt2(const ModelSpec& spec, at::ScalarType compute) : spec_(spec) {
  const std::vector<BlockSpec> table = blocks(spec);
  root_ = make_parameters(table[0], compute);
  for (size_t i = 1; i < table.size(); ++i)
    blocks_.push_back(
        std::make_unique<Gpt2Block>(spec, table[i].name, make_parameters(table[i], compute)));
}

Tensors Gpt2::embed(const at::Tensor& tokens, const Context& context) {
  const at::Tensor hidden = embedding(tokens, root_[0], root_[1], context.sequence.first_position);
  return {dropout(hidden, spec_.embd_pdrop, "embedding", context)};
}

at::Tensor Gpt2::logits(const Tensors& hidden, const Context&) {
  const at::Tensor normed = layer_norm(hidden[0], root_[2], root_[3], spec_.layer_norm_epsilon);
  const Parameter& head = spec_.tie_word_embeddings ? root_[0] : root_[4];
  return linear(normed, head, nullptr, WeightLayout::out_in);
}

Loss Gpt2::loss(const Tensors& hidden, const at::Tensor& targets, double scale,
                const Context& context) {
  return cross_entropy(logits(hidden, context), targets, scale);
}

at::Tensor Gpt2::decode(const at::Tensor& tokens, DecodeCache& cache) {
  const GradMode no_grad(false);
  require(cache.length == 0 || tokens.size(1) == 1, ExitCode::usage, "decode: ", tokens.size(1),
          " tokens after ", cache.length, "; give them one by one");
  Context context;
  context.training = false;
  context.sequence.first_position = cache.length;
  at::Tensor hidden = embed(tokens, context)[0];
  for (size_t i = 0; i < blocks_.size(); ++i) {
    if (cache.layers.size() == i)
      cache.layers.push_back(
          at::empty({tokens.size(0), spec_.max_position_embeddings, 3 * spec_.hidden_size},
                    hidden.options()));
    hidden = blocks_[i]->decode(hidden, cache.layers[i], cache.length);
  }
  cache.length += tokens.size(1);
  return logits({hidden.narrow(1, tokens.size(1) - 1, 1)}, context).squeeze(1);
}

}  // namespace phalanx
