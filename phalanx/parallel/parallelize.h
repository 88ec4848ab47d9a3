#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "phalanx/checkpoint/state.h"
#include "phalanx/comm/mesh.h"
#include "phalanx/data/batches.h"
#include "phalanx/device/dtype.h"
#include "phalanx/models/model.h"
#include "phalanx/shard/data_parallel.h"

namespace phalanx {

struct ParallelOptions {
  uint64_t seed = 0;       ///< of initial values and dropout
  bool recompute = false;  ///< keep only each block's input for backward, and run its forward again
};

/// The ranks that see different rows of a batch: gradients, losses and token counts are summed over
/// them.
inline Dims data_parallel_dims(const Degrees& degrees) {
  return degrees.dp_replicate > 1 ? Dims{Dim::dp_replicate, Dim::dp_shard} : Dims{Dim::dp_shard};
}
inline Communicator& data_parallel_group(Mesh& mesh) {
  return mesh.group(data_parallel_dims(mesh.degrees()));
}

/// A layout put onto a model: its units, the engine over them, and how a microbatch runs through.
///
///     for (...) loss += model.train(batches.microbatch(...), 1.0 / tokens, step, last);
///     model.engine().wait_gradients();
///     ... the optimizer, on model.engine().shards() ...
///     model.engine().finish_step();
class ParallelModel {
 public:
  /// Collective over the mesh. The parameters get the engine's memory and their initial values.
  ParallelModel(std::unique_ptr<Model> model, const Layout& layout, const ParallelOptions& options,
                Mesh& mesh, Device& device);

  /// Forward and backward of a microbatch of step `step`. The gradient is that of
  /// scale x (sum of the losses); returns the sum, in nats. `last`: of this step. Collective.
  /// Out of memory is an Error(environment) that names the unit and the sizes.
  double train(const Microbatch& batch, double scale, int64_t step, bool last);

  /// Forward without gradients or dropout: the sum of the losses. Collective.
  double evaluate(const Microbatch& batch);

  Model& model() { return *model_; }
  DataParallel& engine() { return *engine_; }

  /// The parameters for a checkpoint, as this rank holds them, role "parameter". After loading into
  /// them call engine().finish_step().
  std::vector<StateEntry> state() const;

 private:
  Loss forward(const Microbatch& batch, double scale, const Context& context);
  [[noreturn]] void out_of_memory(const std::string& reason, const Microbatch& batch) const;
  double with_memory_errors(const Microbatch& batch, const std::function<double()>& run);

  ParallelOptions options_;
  Mesh& mesh_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<DataParallel> engine_;
  size_t unit_ = 0;  ///< that runs now, for errors
  const char* pass_ = "forward";
};

}  // namespace phalanx
