#pragma once

#include <memory>
#include <vector>

#include "phalanx/autograd/block.h"
#include "phalanx/nn/cross_entropy.h"
#include "phalanx/spec/model.h"

namespace phalanx {

/// What a model keeps of the positions that decode() has seen. Empty at first.
struct DecodeCache {
  Tensors layers;      ///< one per block, the model's own format
  int64_t length = 0;  ///< positions so far
};

/// A language model as the engine, the trainer and the pipeline see it: blocks between an embedding
/// and a head. A training step on one rank is
///   hidden = embed(tokens); for each block hidden = block(i).forward(hidden);
///   loss(hidden, targets, scale).scaled, and backward from it.
/// Parameters have no memory until an engine or allocate_and_initialize() gives them some.
class Model {
 public:
  virtual ~Model() = default;
  virtual const ModelSpec& spec() const = 0;

  /// What belongs to no block: embeddings, final norm, head; used by embed(), loss() and logits().
  virtual std::vector<Parameter> root_parameters() const = 0;
  virtual int block_count() const = 0;
  virtual Block& block(int index) = 0;

  /// tokens [batch, time] (int64) to hidden states [batch, time, hidden].
  virtual Tensors embed(const at::Tensor& tokens, const Context& context) = 0;
  /// Loss of hidden states against targets [batch, time] (int64, `ignored_target` where nothing
  /// counts); the gradient is that of scale x sum.
  virtual Loss loss(const Tensors& hidden, const at::Tensor& targets, double scale,
                    const Context& context) = 0;
  /// Logits [batch, time, vocabulary] of hidden states.
  virtual at::Tensor logits(const Tensors& hidden, const Context& context) = 0;

  /// Logits [batch, vocabulary] of what follows `tokens` [batch, time] (int64), which follow those
  /// that `cache` holds; adds them to it. Several tokens at once only into an empty cache. Without
  /// gradients.
  virtual at::Tensor decode(const at::Tensor& tokens, DecodeCache& cache) = 0;
};

/// The model that the spec describes. Throws Error(usage) if check(spec) finds anything.
std::unique_ptr<Model> make_model(const ModelSpec& spec, at::ScalarType compute);

/// Root parameters, then those of each block, in the order of blocks(spec).
std::vector<Parameter> parameters_of(Model& model);

/// All blocks in order on one rank: embed() to loss().
Loss forward_loss(Model& model, const at::Tensor& tokens, const at::Tensor& targets, double scale,
                  const Context& context);

}  // namespace phalanx
