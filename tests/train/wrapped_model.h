#pragma once

#include <memory>

#include "phalanx/models/model.h"

namespace phalanx::testing {

/// A model that does what another one does: tests change one of its functions.
class WrappedModel : public Model {
 public:
  explicit WrappedModel(std::unique_ptr<Model> model) : model_(std::move(model)) {}
  const ModelSpec& spec() const override { return model_->spec(); }
  std::vector<Parameter> root_parameters() const override { return model_->root_parameters(); }
  int block_count() const override { return model_->block_count(); }
  Block& block(int index) override { return model_->block(index); }
  Tensors embed(const at::Tensor& tokens, const Context& context) override {
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
};

}  // namespace phalanx::testing
