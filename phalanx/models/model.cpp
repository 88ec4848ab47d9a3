#include "phalanx/models/model.h"

#include "phalanx/models/gpt2.h"

namespace phalanx {

std::unique_ptr<Model> make_model(const ModelSpec& spec, at::ScalarType compute) {
  return std::make_unique<Gpt2>(spec, compute);  // the only kind that check(spec) lets through
}

std::vector<Parameter> parameters_of(Model& model) {
  std::vector<Parameter> all = model.root_parameters();
  for (int i = 0; i < model.block_count(); ++i)
    for (const Parameter& parameter : model.block(i).parameters()) all.push_back(parameter);
  return all;
}

Loss forward_loss(Model& model, const at::Tensor& tokens, const at::Tensor& targets, double scale,
                  const Context& context) {
  Tensors hidden = model.embed(tokens, context);
  for (int i = 0; i < model.block_count(); ++i) hidden = model.block(i).forward(hidden, context);
  return model.loss(hidden, targets, scale, context);
}

}  // namespace phalanx
