#pragma once

#include <cstdint>
#include <vector>

#include "phalanx/autograd/op.h"
#include "phalanx/autograd/parameter.h"

namespace phalanx {

class Mesh;

/// Which samples and positions the tensors of a call hold, so that dropout masks and positions are
/// the same in every layout.
struct SequenceMap {
  int64_t first_sample = 0;    ///< global index in the step's batch of this microbatch's first row
  int64_t first_position = 0;  ///< global position of this rank's first token (context parallelism)
};

/// What a block may know about the call that it is in.
struct Context {
  Mesh* mesh = nullptr;  ///< null: one rank
  int64_t step = 0;      ///< keys dropout
  SequenceMap sequence;
  uint64_t seed = 0;
  bool training = true;  ///< false: no dropout
};

/// One repeated piece of a model: the grain of sharding, recompute and pipeline cuts. Lists of
/// tensors in, lists of tensors out.
class Block {
 public:
  virtual ~Block() = default;
  /// In a fixed order, each once even if layers share it.
  virtual std::vector<Parameter> parameters() const = 0;
  virtual Tensors forward(const Tensors& inputs, const Context& context) = 0;
};

/// Runs `function` now without keeping its inner graph, and again in backward (Chen et al. 2016).
/// Only `inputs` are kept. Parameters may be used inside; they must be gathered when backward runs.
Tensors recompute(const Tensors& inputs, std::function<Tensors(const Tensors&)> function);

/// Identity on `inputs` whose backward calls `on_backward` once, when the gradients of all of them
/// have arrived. Inputs that need no gradient pass through untouched.
Tensors boundary(const Tensors& inputs, std::function<void()> on_backward);

}  // namespace phalanx
