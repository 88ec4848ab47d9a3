#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "phalanx/spec/dims.h"
#include "phalanx/spec/dtype.h"
#include "phalanx/spec/violation.h"

namespace phalanx {

/// What of the state is sharded over the data-parallel ranks (the strategy table in
/// docs/design.md).
enum class Strategy : uint8_t {
  none,                ///< DDP: all whole
  optim,               ///< ZeRO-1: optimizer state 1/N
  optim_grads,         ///< ZeRO-2: and gradients 1/N
  optim_grads_params,  ///< ZeRO-3, FSDP: and parameters 1/N
};

/// When gradients are summed over the data-parallel ranks.
enum class Reduce : uint8_t { every_microbatch, step };

enum class Cut : uint8_t { flat, per_parameter };

struct Degrees {
  int pp = 1, dp_replicate = 1, dp_shard = 1, cp = 1, tp = 1, ep = 1, etp = 1;
  int world() const { return pp * dp_replicate * dp_shard * cp * tp; }
  bool operator==(const Degrees&) const = default;
};

/// How the state and the work of a run are spread over its ranks.
struct Layout {
  Degrees degree;
  Strategy strategy = Strategy::optim_grads_params;
  Reduce reduce = Reduce::every_microbatch;
  bool reshard_after_forward = true;
  Cut cut = Cut::flat;
  int prefetch = 1;  ///< units gathered ahead, in forward and in backward
  Dtype compute = Dtype::float32;
  Dtype master = Dtype::float32;
  Dtype reduce_dtype = Dtype::float32;
  /// Every rank keeps the whole gradient up to the last microbatch of a step.
  bool whole_gradients() const {
    return strategy < Strategy::optim_grads || reduce == Reduce::step;
  }
  bool operator==(const Layout&) const = default;
};

const char* name(Strategy strategy);
const char* name(Reduce reduce);
const char* name(Cut cut);

struct ModelSpec;

/// Every rule that this layout breaks for this model and world size; empty if it can run.
std::vector<Violation> check(const ModelSpec& model, const Layout& layout, int world_size);

/// The ranks of `rank`'s group along `dims`, folded, in rank order.
std::vector<int> group_ranks(const Degrees& degrees, int rank, Dims dims);

/// The coordinate of `rank` along one dimension.
int coordinate(const Degrees& degrees, int rank, Dim dim);

}  // namespace phalanx
