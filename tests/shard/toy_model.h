#pragma once

#include <ATen/ATen.h>

#include <string>
#include <vector>

#include "phalanx/autograd/block.h"
#include "phalanx/autograd/op.h"
#include "phalanx/autograd/storage.h"
#include "phalanx/shard/data_parallel.h"
#include "tests/support/operations.h"

namespace phalanx::testing {

/// y = x * g, g a vector.
inline at::Tensor scale(const at::Tensor& x, const Parameter& g) {
  at::Tensor y;
  {
    BelowAutograd below;
    y = at::mul(x, g->tensor);
  }
  return differentiable("scale", {x}, {g}, {x}, {y},
                        [g](const Tensors& saved, const Tensors& gradients,
                            const std::vector<bool>& needs) -> Tensors {
                          const at::Tensor x = saved[0], dy = gradients[0];
                          weight_gradient(g, [x, dy](at::Tensor target, bool accumulate) {
                            accumulate ? target.add_((x * dy).sum(0))
                                       : target.copy_((x * dy).sum(0));
                          });
                          return {needs[0] ? at::mul(dy, g->tensor) : at::Tensor()};
                        })[0];
}

/// A residual block with odd sizes: x + scale(gelu(x w1)) w2, g used twice.
struct ToyBlock final : Block {
  Parameter g, w1, w2;
  std::vector<Parameter> parameters() const override { return {g, w1, w2}; }
  Tensors forward(const Tensors& inputs, const Context&) override {
    const at::Tensor x = scale(inputs[0], g);
    return {inputs[0] + scale(matmul(at::gelu(matmul(x, w1)), w2), g)};
  }
};

/// Root: an input and an output matrix, and one that no forward uses.
struct ToyModel {
  Parameter in, out, unused;
  std::vector<std::unique_ptr<ToyBlock>> blocks;

  explicit ToyModel(int block_count, at::ScalarType type = at::kDouble, int64_t width = 7,
                    int64_t inner = 11) {
    auto make = [&](std::string name, std::vector<int64_t> shape) {
      return make_parameter(whole_parameter(name, name, shape, Kind::weight, {}), type);
    };
    in = make("in", {5, width}), out = make("out", {width, 3}), unused = make("unused", {2, 2});
    for (int i = 0; i < block_count; ++i) {
      const std::string prefix = "blocks." + std::to_string(i) + ".";
      blocks.push_back(std::make_unique<ToyBlock>());
      blocks.back()->g = make(prefix + "g", {width});
      blocks.back()->w1 = make(prefix + "w1", {width, inner});
      blocks.back()->w2 = make(prefix + "w2", {inner, width});
    }
  }

  std::vector<UnitParameters> units() const {
    std::vector<UnitParameters> units = {{"root", {in, out, unused}}};
    for (size_t i = 0; i < blocks.size(); ++i)
      units.push_back({"blocks." + std::to_string(i), blocks[i]->parameters()});
    return units;
  }

  /// The values that every rank and the reference start from.
  static at::Tensor values(const Parameter& parameter) {
    auto generator =
        at::make_generator<at::CPUGeneratorImpl>(std::hash<std::string>{}(parameter->spec.name));
    return at::randn(parameter->spec.local_shape, generator, at::TensorOptions().dtype(at::kDouble))
        .mul(0.5)
        .to(parameter->tensor.scalar_type());
  }

  static void initialize(const Parameter& parameter, int64_t begin, int64_t end,
                         const at::Tensor& out) {
    at::Tensor(out).copy_(values(parameter).flatten().slice(0, begin, end));
  }

  void allocate() {
    for (const auto& unit : units())
      for (const auto& parameter : unit.parameters)
        attach_storage(parameter->tensor, values(parameter));
  }
};

}  // namespace phalanx::testing
