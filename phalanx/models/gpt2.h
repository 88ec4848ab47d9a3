#pragma once

#include <array>
#include <string>

#include "phalanx/models/model.h"

namespace phalanx {

/// One transformer layer of GPT-2 (Radford et al. 2019): hidden states [batch, time, hidden] in and
/// out. Norms before attention and MLP, biases everywhere, weights [in, out].
class Gpt2Block : public Block {
 public:
  /// `parameters` in the order of blocks(spec)[1 + layer].
  Gpt2Block(const ModelSpec& spec, std::string name, std::vector<Parameter> parameters);
  std::vector<Parameter> parameters() const override;
  Tensors forward(const Tensors& inputs, const Context& context) override;
  /// The same without gradients for positions that follow `length` others, whose queries, keys and
  /// values `cached` [batch, context, 3 hidden] holds; adds those of the new positions to it.
  at::Tensor decode(const at::Tensor& input, const at::Tensor& cached, int64_t length);

 private:
  using Attention = std::function<at::Tensor(const at::Tensor& packed)>;
  at::Tensor run(const at::Tensor& input, const Context& context, const Attention& attend);

  const ModelSpec spec_;
  const std::string name_;
  std::array<Parameter, 12> parameters_;
};

class Gpt2 : public Model {
 public:
  Gpt2(const ModelSpec& spec, at::ScalarType compute);
  const ModelSpec& spec() const override { return spec_; }
  std::vector<Parameter> root_parameters() const override { return root_; }
  int block_count() const override { return int(blocks_.size()); }
  Block& block(int index) override { return *blocks_.at(size_t(index)); }
  Tensors embed(const at::Tensor& tokens, const Context& context) override;
  Loss loss(const Tensors& hidden, const at::Tensor& targets, double scale,
            const Context& context) override;
  at::Tensor logits(const Tensors& hidden, const Context& context) override;
  at::Tensor decode(const at::Tensor& tokens, DecodeCache& cache) override;

 private:
  const ModelSpec spec_;
  std::vector<Parameter> root_;  // wte, wpe, ln_f weight and bias, and lm_head unless it is tied
  std::vector<std::unique_ptr<Gpt2Block>> blocks_;
};

}  // namespace phalanx
