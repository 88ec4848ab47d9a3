#include "phalanx/shard/unit.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "phalanx/autograd/op.h"
#include "phalanx/autograd/storage.h"
#include "phalanx/base/error.h"
#include "phalanx/device/dtype.h"

namespace phalanx {
Unit::Unit(UnitPlan plan, std::vector<Parameter> parameters, const Layout& layout,
           Communicator& group, Device& device, GradientRing* ring)
    : plan_(std::move(plan)),
      parameters_(std::move(parameters)),
      group_(group),
      device_(device),
      gather_stream_(device.stream("gather")),
      reduce_stream_(device.stream("reduce")),
      shard_index_(plan_.shards == 1 ? 0 : group.rank()),
      ring_(ring),
      written_(parameters_.size(), 0) {
  require(plan_.compute == plan_.master && plan_.compute == plan_.reduce, ExitCode::usage, "unit ",
          name(), ": compute ", phalanx::name(plan_.compute), ", master ",
          phalanx::name(plan_.master), " and reduce ", phalanx::name(plan_.reduce),
          "; they must be the same dtype in this version");
  require(plan_.shards == 1 || plan_.shards == group.size(), ExitCode::usage, "unit ", name(),
          ": cut in ", plan_.shards, " shards for a group of ", group.size(), " ranks");
  require(plan_.compute == Dtype::float32 || plan_.compute == Dtype::float64, ExitCode::usage,
          "unit ", name(), ": dtype ", phalanx::name(plan_.compute), "; use float32 or float64");
  allocate_values();
  allocate_gradients(layout);
}

Unit::~Unit() {
  for (auto& parameter : parameters_) parameter->slot = nullptr;
}

void Unit::allocate_values() {
  const at::ScalarType type = scalar_type(plan_.compute);
  const int64_t shard_bytes = plan_.shard_count * size_of(plan_.compute);
  if (gathers_each_use()) {
    if (at::Tensor window = group_.allocate_window(shard_bytes); window.defined())
      whole_ = window.view(type);
    else
      value_shard_ = group_.allocate(shard_bytes).view(type);
  } else if (plan_.strategy == Strategy::none) {
    whole_ = at::zeros({plan_.padded}, type);
  } else {
    whole_ = group_.allocate(whole_bytes()).view(type);
  }
  if (!value_shard_.defined())
    value_shard_ = whole_.narrow(0, shard_index_ * plan_.shard_count, plan_.shard_count);
  list_accesses();
}

// The device learns of the memory, so that it can check accesses. Of a window a gather reads this
// rank's part and brings the others'.
void Unit::list_accesses() {
  const bool window = gathers_each_use() && whole_.defined();
  if (gathers_each_use()) gather_accesses_ = {{value_shard_, false}};
  for (int shard = 0; window && shard < plan_.shards; ++shard)
    if (shard != shard_index_)
      gather_accesses_.push_back(
          {whole_.narrow(0, shard * plan_.shard_count, plan_.shard_count), true});
  if (!gathers_each_use()) gather_accesses_ = {{whole_, true}};
  for (const Access& access : gather_accesses_)
    device_.launch(device_.compute(), "allocate parameters", {{access.buffer, true}}, [] {});
}

void Unit::allocate_gradients(const Layout& layout) {
  whole_gradients_ = layout.whole_gradients();
  if (whole_gradients_) ring_ = nullptr;
  const at::ScalarType type = scalar_type(plan_.reduce);
  if (!ring_) own_buffer_ = GradientBuffer::allocate(group_, device_, whole_bytes());
  // Reduced in place: nobody but this rank reads this rank's part of its own buffer.
  if (whole_gradients_)
    gradient_shard_ = own_buffer_.memory.view(type).narrow(0, shard_index_ * plan_.shard_count,
                                                           plan_.shard_count);
  else
    gradient_shard_ = at::zeros({plan_.shard_count}, type);
}

void Unit::initialize(const Initializer& initializer) {
  GradMode no_grad(false);
  for (size_t i = 0; i < parameters_.size(); ++i) {
    // A unit that rests whole is filled whole; one that is cut, only in this rank's part.
    const bool whole = whole_.defined() && !gathers_each_use();
    const auto range =
        whole ? UnitPlan::Range{0, plan_.slots[i].count} : plan_.range(i, shard_index_);
    const int64_t shard_start = whole ? 0 : plan_.shard_count * shard_index_;
    const at::Tensor& into = whole ? whole_ : value_shard_;
    at::Tensor out =
        range.empty()
            ? into.narrow(0, 0, 0)
            : into.narrow(0, plan_.slots[i].offset + range.begin - shard_start, range.count());
    initializer(parameters_[i], range.begin, range.begin + range.count(), out);
  }
  adopt_parameters();
  build_shards();
  values_written_ = device_.record(device_.compute());
}

void Unit::adopt_parameters() {
  const at::TensorOptions options = at::TensorOptions().dtype(scalar_type(plan_.compute));
  flat_ = at::empty({0}, options);
  flat_.storage().unsafeGetStorageImpl()->set_nbytes(whole_bytes());
  for (size_t i = 0; i < parameters_.size(); ++i) {
    ParameterState& parameter = *parameters_[i];
    require(parameter.slot == nullptr, ExitCode::usage, "parameter ", parameter.spec.name,
            ": belongs to another unit besides ", name(), "; tied parameters share one unit");
    at::Tensor view = at::empty({0}, options)
                          .set_(flat_.storage(), plan_.slots[i].offset, parameter.spec.local_shape);
    parameter.tensor.mutable_grad().reset();  // of a backward before: it is of no step to come
    parameter.tensor.set_data(view);
    parameter.slot = this;
    parameter.index = static_cast<int>(i);
  }
  if (gathers_each_use())
    detach_storage(flat_, "unit " + name() + " is sharded: gather it before its use");
  else
    attach_storage(flat_, whole_);
}

void Unit::build_shards() {
  const int64_t start = plan_.shard_count * shard_index_;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const auto range = plan_.range(i, shard_index_);
    const int64_t offset = range.empty() ? 0 : plan_.slots[i].offset + range.begin - start;
    shards_.push_back({parameters_[i], range, value_shard_.narrow(0, offset, range.count()),
                       gradient_shard_.narrow(0, offset, range.count())});
  }
}

// ---- parameters

void Unit::prefetch() {
  if (!gathers_each_use() || gather_pending_ || uses_ > 0) return;
  device_.wait(gather_stream_, values_written_);
  at::Tensor out = whole_;
  std::vector<Access> accesses = gather_accesses_;
  if (!out.defined()) {
    gathered_ = device_.allocate(gather_stream_, whole_bytes(), name());
    out = gathered_.view(value_shard_.scalar_type());
    accesses.push_back({out, true});
  }
  device_.launch(gather_stream_, "gather " + name(), accesses, [this, out] {
    gather_ = group_.all_gather(out, value_shard_, {name(), "parameters"});
  });
  gather_issued_ = device_.record(gather_stream_);
  gather_pending_ = true;
}

void Unit::complete_gather() {
  if (!gather_pending_) return;
  device_.wait(device_.compute(), gather_issued_);
  gather_.wait();
  gather_pending_ = false;
}

void Unit::gather() {
  prefetch();
  complete_gather();
  if (uses_++ == 0 && gathers_each_use())
    attach_storage(flat_, whole_.defined() ? whole_ : gathered_);
}

void Unit::release_parameters() {
  require(uses_ > 0, ExitCode::usage, "unit ", name(), ": released without a gather");
  if (--uses_ > 0 || !gathers_each_use()) return;
  detach_storage(flat_, "unit " + name() + " is sharded: gather it before its use");
  gather_.release();
  // The memory goes back to the gather stream, whose next gather may write it: after this use.
  device_.wait(gather_stream_, device_.record(device_.compute()));
  if (!gathered_.defined()) return;
  device_.free(gather_stream_, std::move(gathered_));
  gathered_ = at::Tensor();
}

// ---- gradients

void Unit::take_gradient_buffer() {
  if (current_) return;
  if (ring_) {
    current_ = &ring_->take();
  } else {
    own_buffer_.wait_idle(device_);
    current_ = &own_buffer_;
  }
  gradient_ = current_->memory.narrow(0, 0, whole_bytes()).view(scalar_type(plan_.reduce));
  std::fill(written_.begin(), written_.end(), 0);
}

GradientSlot::Target Unit::target(const ParameterState& parameter) {
  take_gradient_buffer();
  const UnitPlan::Slot& slot = plan_.slots[parameter.index];
  const bool accumulate = written_[parameter.index];
  written_[parameter.index] = 1;
  return {gradient_.narrow(0, slot.offset, slot.count).view(parameter.spec.local_shape),
          accumulate};
}

// A user's own module leaves its gradients where autograd puts them; taking them costs one copy,
// no more than accumulating into a preset buffer would.
void Unit::collect_leaf_gradients() {
  for (auto& parameter : parameters_) {
    at::Tensor& gradient = parameter->tensor.mutable_grad();
    if (!gradient.defined()) continue;
    const Target to = target(*parameter);
    if (to.accumulate)
      to.tensor.add_(gradient);
    else
      to.tensor.copy_(gradient);
    gradient.reset();
  }
}

void Unit::zero_what_nobody_wrote() {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const UnitPlan::Slot& slot = plan_.slots[i];
    const int64_t end = i + 1 < plan_.slots.size() ? plan_.slots[i + 1].offset : plan_.padded;
    const int64_t from = written_[i] ? slot.offset + slot.count : slot.offset;
    if (end > from) gradient_.narrow(0, from, end - from).zero_();
  }
}

void Unit::issue_reduction() {
  zero_what_nobody_wrote();
  device_.wait(reduce_stream_, device_.record(device_.compute()));
  GradientBuffer* buffer = current_;
  const at::Tensor whole = gradient_;
  const bool accumulate = shard_holds_sum_;
  device_.launch(reduce_stream_, "reduce " + name(), {{whole, false}, {gradient_shard_, true}},
                 [this, buffer, whole, accumulate] {
                   const Call call{name(), "gradients"};
                   buffer->reduction = plan_.strategy == Strategy::none
                                           ? group_.all_reduce(whole, Op::sum, call)
                                           : group_.reduce_scatter(gradient_shard_, whole, Op::sum,
                                                                   call, accumulate);
                 });
  current_->issued = device_.record(reduce_stream_);
  current_->filling = false;
  current_ = nullptr;
  shard_holds_sum_ = !whole_gradients_;
}

void Unit::gradients_ready(When when) {
  GradMode no_grad(false);
  collect_leaf_gradients();
  if (when == When::later) {
    require(whole_gradients_, ExitCode::usage, "unit ", name(), ": strategy ",
            phalanx::name(plan_.strategy),
            " with reduce = every_microbatch keeps no gradients for later");
    return;
  }
  take_gradient_buffer();
  issue_reduction();
}

// ---- step

void Unit::wait_gradients() {
  if (ring_)
    ring_->wait_idle();
  else
    own_buffer_.wait_idle(device_);
  // A gather that nobody used would hand out values from before the step.
  const bool unused = gather_pending_ && gathers_each_use();
  complete_gather();
  if (unused) {
    ++uses_;
    release_parameters();
  }
  gather_.wait_inputs();
}

void Unit::finish_step() {
  GradMode no_grad(false);
  shard_holds_sum_ = false;
  values_written_ = device_.record(device_.compute());
  if (gathers_each_use() || plan_.strategy == Strategy::none) return;
  device_.wait(gather_stream_, values_written_);
  device_.launch(gather_stream_, "gather " + name(), gather_accesses_, [this] {
    gather_ = group_.all_gather(whole_, value_shard_, {name(), "parameters"});
  });
  gather_issued_ = device_.record(gather_stream_);
  gather_pending_ = true;
}

}  // namespace phalanx
