#include "phalanx/spec/unit_plan.h"

#include <algorithm>

#include "phalanx/base/error.h"

namespace phalanx {
namespace {

int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

UnitPlan::Range UnitPlan::range(size_t parameter, int shard) const {
  const Slot& slot = slots.at(parameter);
  const int64_t first = shard_count * shard - slot.offset;
  return {std::clamp<int64_t>(first, 0, slot.count),
          std::clamp<int64_t>(first + shard_count, 0, slot.count)};
}

UnitPlan plan_unit(std::string name, std::span<const ParameterSpec> parameters,
                   const Layout& layout, int shards, int64_t alignment) {
  require(shards >= 1 && alignment >= 1, ExitCode::usage, "unit ", name, ": ", shards,
          " shards with alignment ", alignment, "; both must be at least 1");
  UnitPlan plan;
  plan.name = std::move(name);
  plan.shards = shards;
  plan.alignment = alignment;
  plan.strategy = layout.strategy;
  plan.compute = layout.compute;
  plan.master = layout.master;
  plan.reduce = layout.reduce_dtype;
  int64_t end = 0;
  for (const ParameterSpec& spec : parameters) {
    plan.slots.push_back({end, element_count(spec.local_shape)});
    end = round_up(end + plan.slots.back().count, alignment);
  }
  plan.padded = round_up(end, alignment * shards);
  plan.shard_count = plan.padded / shards;
  return plan;
}

}  // namespace phalanx
