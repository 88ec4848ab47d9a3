#include "phalanx/shard/data_parallel.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>

#include "phalanx/autograd/block.h"
#include "phalanx/autograd/deferred.h"
#include "phalanx/base/error.h"
#include "phalanx/comm/scalar.h"
#include "phalanx/device/dtype.h"
#include "phalanx/device/failure.h"
#include "phalanx/kernels/sum_of_squares.h"

namespace phalanx {

DataParallel::DataParallel(const Layout& layout, Communicator& group, Device& device,
                           std::vector<UnitParameters> units, const Initializer& initializer)
    : layout_(layout), group_(group), calls_(units.size()) {
  require(layout.cut == Cut::flat, ExitCode::usage, "parallel.cut = ", name(layout.cut),
          " is not available in this version; use flat");
  const int shards = layout.strategy == Strategy::none ? 1 : group.size();
  std::vector<UnitPlan> plans;
  int64_t largest = 0;
  for (const auto& unit : units) {
    std::vector<ParameterSpec> specs;
    for (const auto& parameter : unit.parameters) specs.push_back(parameter->spec);
    plans.push_back(plan_unit(unit.name, specs, layout, shards));
    if (plans.size() > 1) largest = std::max(largest, plans.back().padded);
  }
  const int64_t ring_bytes = largest * size_of(layout.reduce_dtype);
  if (!layout.whole_gradients() && largest > 0)
    allocate_named(text("two gradient buffers of the largest unit, ", ring_bytes,
                        " bytes each, strategy ", name(layout.strategy)),
                   [&] { ring_ = std::make_unique<GradientRing>(group, device, 2, ring_bytes); });
  for (size_t i = 0; i < units.size(); ++i) {
    const UnitPlan& plan = plans[i];
    allocate_named(
        text("unit ", plan.name, " (", plan.padded * size_of(plan.compute),
             " bytes of parameters, in ", plan.shards, " shards, strategy ", name(plan.strategy),
             ")"),
        [&] {
          units_.push_back(std::make_unique<Unit>(plan, std::move(units[i].parameters), layout,
                                                  group, device, i == 0 ? nullptr : ring_.get()));
          units_.back()->initialize(initializer);
        });
  }
}

void DataParallel::prefetch(size_t from, int direction) {
  for (int step = 1; step <= layout_.prefetch; ++step) {
    const int64_t i = static_cast<int64_t>(from) + direction * step;
    if (i < 1 || i >= static_cast<int64_t>(units_.size())) return;
    units_[i]->prefetch();
  }
}

void DataParallel::begin_microbatch(bool last) {
  last_ = last;
  training_ = at::GradMode::is_enabled();
  std::fill(calls_.begin(), calls_.end(), Calls{});
  units_[0]->prefetch();
  prefetch(0, +1);
  units_[0]->gather();
}

Tensors DataParallel::run(size_t unit, const Tensors& inputs,
                          const std::function<Tensors(const Tensors&)>& function) {
  if (unit == 0) return function(inputs);
  const bool training = training_ && at::GradMode::is_enabled();
  const Tensors entering =
      training ? boundary(inputs, [this, unit] { after_backward(unit); }) : inputs;
  units_[unit]->gather();
  prefetch(unit, +1);
  Tensors outputs = function(entering);
  if (!training) {
    units_[unit]->release_parameters();
    return outputs;
  }
  ++calls_[unit].open;
  if (layout_.reshard_after_forward) {
    units_[unit]->release_parameters();
    // Backward begins with the last unit: its gather hides behind the head and the loss.
    if (unit + 1 == units_.size() && layout_.prefetch > 0) units_[unit]->prefetch();
  }
  return boundary(outputs, [this, unit] { before_backward(unit); });
}

void DataParallel::before_backward(size_t unit) {
  ++calls_[unit].entered;
  if (layout_.reshard_after_forward) units_[unit]->gather();
  prefetch(unit, -1);
}

// Two events: parameters are no longer needed now; weight gradients may still be deferred.
void DataParallel::after_backward(size_t unit) {
  Calls& calls = calls_[unit];
  if (calls.entered == 0) return;
  units_[unit]->release_parameters();
  --calls.entered;
  if (--calls.open > 0) return;
  if (DeferredGradients* queue = DeferredGradients::active())
    queue->push([this, unit] { gradients_ready(unit); });
  else
    gradients_ready(unit);
}

void DataParallel::gradients_ready(size_t unit) {
  calls_[unit].ready = true;
  const bool now = last_ || !layout_.whole_gradients();
  units_[unit]->gradients_ready(now ? Unit::When::now : Unit::When::later);
}

void DataParallel::end_microbatch() {
  for (size_t i = units_.size(); training_ && i-- > 1;) {
    Calls& calls = calls_[i];
    // Uses whose backward never ended: inputs that need no gradient, or no path from the loss.
    const bool kept = !layout_.reshard_after_forward;
    for (int uses = kept ? calls.open : calls.entered; uses > 0; --uses)
      units_[i]->release_parameters();
    if (!calls.ready) gradients_ready(i);
    calls = {};
  }
  units_[0]->release_parameters();
  if (training_) gradients_ready(0);
}

void DataParallel::wait_gradients() {
  for (auto& unit : units_) unit->wait_gradients();
}

double DataParallel::gradient_norm() {
  double local = 0;
  for (const auto& unit : units_) local += sum_of_squares(unit->gradient_shard());
  if (layout_.strategy == Strategy::none || group_.size() == 1) return std::sqrt(local);
  return std::sqrt(all_reduce(group_, local, Op::sum, {"all units", "norm"}));
}

void DataParallel::finish_step() {
  for (auto& unit : units_) unit->finish_step();
}

std::vector<ParameterShard> DataParallel::shards() const {
  std::vector<ParameterShard> all;
  for (const auto& unit : units_)
    all.insert(all.end(), unit->shards().begin(), unit->shards().end());
  return all;
}

}  // namespace phalanx
