#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "phalanx/spec/layout.h"
#include "phalanx/spec/parameter.h"

namespace phalanx {

/// Where the parameters of one unit lie in its flat buffer and how that buffer is cut into shards.
/// Engine, checkpoint and planner read the same plan. All counts are elements.
struct UnitPlan {
  struct Slot {
    int64_t offset;  ///< of the first element, a multiple of `alignment`
    int64_t count;   ///< without padding
  };
  std::string name;
  std::vector<Slot> slots;  ///< one per parameter, in the order given
  int64_t padded = 0;       ///< elements of the whole buffer: shards x shard_count
  int64_t shard_count = 0;  ///< elements of one shard, a multiple of `alignment`
  int shards = 1;
  int64_t alignment = 16;
  Strategy strategy = Strategy::optim_grads_params;
  Dtype compute = Dtype::float32, master = Dtype::float32, reduce = Dtype::float32;

  /// The part of parameter `i` that shard `r` holds, in elements of the flattened parameter.
  struct Range {
    int64_t begin, end;
    bool empty() const { return begin >= end; }
    int64_t count() const { return empty() ? 0 : end - begin; }
  };
  Range range(size_t parameter, int shard) const;
};

/// Flat cut: parameters one after another, each at a multiple of `alignment` elements (64 bytes of
/// float32 by default), the end padded so that every shard has the same aligned size.
UnitPlan plan_unit(std::string name, std::span<const ParameterSpec> parameters,
                   const Layout& layout, int shards, int64_t alignment = 16);

}  // namespace phalanx
