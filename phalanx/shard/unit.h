#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "phalanx/autograd/parameter.h"
#include "phalanx/comm/communicator.h"
#include "phalanx/device/device.h"
#include "phalanx/shard/gradient_ring.h"
#include "phalanx/spec/unit_plan.h"

namespace phalanx {

/// What one rank's optimizer owns of one parameter. Empty where the cut gives it nothing.
struct ParameterShard {
  Parameter parameter;
  UnitPlan::Range range;  ///< of the flattened parameter
  at::Tensor values;      ///< 1-D, master dtype
  at::Tensor gradient;    ///< 1-D, reduce dtype; valid between wait_gradients() and finish_step()
};

/// Writes elements [begin, end) of a flattened parameter into `out` (1-D): its initial values.
/// Called for every parameter on every rank, in the same order, also with empty ranges.
using Initializer = std::function<void(const Parameter& parameter, int64_t begin, int64_t end,
                                       const at::Tensor& out)>;

/// The parameters that are gathered and reduced together, and their state under one strategy.
///
/// The verbs are explicit; boundary nodes (DataParallel::run) and a pipeline executor are drivers
/// of them. Memory of parameters: one StorageImpl, parameters at offsets in it; gathering points
/// it at a buffer, releasing takes the buffer away.
///
///   strategy             values                      gradients
///   none                 whole, plain memory         whole, all-reduced in place
///   optim                whole, peers read my part   whole, reduce-scattered into my part
///   optim_grads          whole, peers read my part   ring buffer, reduce-scattered into a shard
///   optim_grads_params   my part; the group's window ring buffer, reduce-scattered into a shard
///                        is the gathered unit where
///                        ranks share memory, else a
///                        buffer per gather
///
/// With Reduce::step the last two keep whole gradients, as optim does.
class Unit final : public GradientSlot {
 public:
  /// `ring`: where gradients are written if they are reduced every microbatch; null: a buffer of
  /// this unit's own (the root, whose gradients arrive over the whole backward). Collective.
  Unit(UnitPlan plan, std::vector<Parameter> parameters, const Layout& layout, Communicator& group,
       Device& device, GradientRing* ring);
  ~Unit() override;
  Unit(const Unit&) = delete;

  /// Fills this rank's part of the values and makes the parameters the unit's. Until then they
  /// have the memory that they came with. Collective.
  void initialize(const Initializer& initializer);

  const UnitPlan& plan() const { return plan_; }
  const std::string& name() const { return plan_.name; }
  std::span<const Parameter> parameters() const { return parameters_; }

  // ---- parameters
  void prefetch();            ///< starts a gather; nothing if gathered or started
  void gather();              ///< parameters have memory when it returns; uses nest
  void release_parameters();  ///< ends one use; the last one gives memory back

  // ---- gradients
  enum class When { now, later };  ///< reduce these gradients now, or keep adding to them
  Target target(const ParameterState& parameter) override;
  /// All gradients of this microbatch are written.
  void gradients_ready(When when);

  // ---- step
  /// On return gradient shards are reduced, and values may be written: peers have read them.
  void wait_gradients();
  std::span<const ParameterShard> shards() const { return shards_; }
  const at::Tensor& value_shard() const { return value_shard_; }        ///< 1-D, with padding
  const at::Tensor& gradient_shard() const { return gradient_shard_; }  ///< 1-D, padding is zero
  /// The optimizer has written the values: peers may have them.
  void finish_step();

 private:
  bool gathers_each_use() const { return plan_.strategy == Strategy::optim_grads_params; }
  int64_t whole_bytes() const { return plan_.padded * size_of(plan_.compute); }
  void allocate_values();
  void list_accesses();
  void allocate_gradients(const Layout& layout);
  void adopt_parameters();
  void build_shards();
  void complete_gather();
  void take_gradient_buffer();
  void collect_leaf_gradients();
  void zero_what_nobody_wrote();
  void issue_reduction();

  UnitPlan plan_;
  std::vector<Parameter> parameters_;
  Communicator& group_;
  Device& device_;
  Stream gather_stream_, reduce_stream_;
  int shard_index_;  ///< which shard this rank holds

  at::Tensor flat_;         ///< owns the StorageImpl that all parameters alias
  at::Tensor whole_;        ///< 1-D, values where they rest whole, or the window; else undefined
  at::Tensor value_shard_;  ///< 1-D
  at::Tensor gathered_;     ///< bytes, while a gather into a buffer of its own is alive
  std::vector<Access> gather_accesses_;  ///< of every gather, but for that buffer
  Handle gather_;
  Event gather_issued_, values_written_;
  bool gather_pending_ = false;  ///< issued, not waited for
  int uses_ = 0;

  bool whole_gradients_ = false;
  GradientRing* ring_;
  GradientBuffer own_buffer_;          ///< whole gradients, or the root's buffer
  GradientBuffer* current_ = nullptr;  ///< the buffer being filled
  at::Tensor gradient_;                ///< 1-D view of it
  at::Tensor gradient_shard_;          ///< 1-D
  std::vector<char> written_;          ///< per parameter, since the buffer was taken
  bool shard_holds_sum_ = false;       ///< an earlier microbatch of this step was reduced
  std::vector<ParameterShard> shards_;
};

}  // namespace phalanx
