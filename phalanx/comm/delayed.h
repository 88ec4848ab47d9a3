#pragma once

#include <chrono>
#include <memory>

#include "phalanx/comm/communicator.h"

namespace phalanx {

/// What a slow link would have cost: every gather and reduce is complete only `delay` after it was
/// issued, and what is left of that at wait() is slept and counted.
struct DelayRecord {
  std::chrono::nanoseconds total{0};    ///< delays of all calls waited for
  std::chrono::nanoseconds exposed{0};  ///< the part that the program waited for
  int calls = 0;
  double hidden_share() const {
    return total.count() ? 1 - double(exposed.count()) / double(total.count()) : 0;
  }
};

/// Wraps a communicator, for measuring how much communication hides behind compute. all_gather,
/// reduce_scatter and all_reduce are delayed; the rest passes through.
class DelayedCommunicator : public Communicator {
 public:
  DelayedCommunicator(std::unique_ptr<Communicator> inner, std::chrono::nanoseconds delay)
      : inner_(std::move(inner)), delay_(delay), record_(std::make_shared<DelayRecord>()) {}

  const DelayRecord& record() const { return *record_; }
  void reset() { *record_ = {}; }

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  std::string_view name() const override { return inner_->name(); }
  std::string_view transport() const override { return inner_->transport(); }
  int64_t epoch() const override { return inner_->epoch(); }
  at::Tensor allocate(int64_t bytes) override { return inner_->allocate(bytes); }
  at::Tensor allocate_window(int64_t part_bytes) override {
    return inner_->allocate_window(part_bytes);
  }
  Handle all_gather(at::Tensor out, at::Tensor in, const Call& call) override;
  Handle reduce_scatter(at::Tensor out, at::Tensor in, Op op, const Call& call,
                        bool accumulate = false) override;
  Handle all_reduce(at::Tensor inout, Op op, const Call& call) override;
  Handle broadcast(at::Tensor inout, int root, const Call& call) override;
  Handle all_to_all(at::Tensor out, std::span<const int64_t> out_splits, at::Tensor in,
                    std::span<const int64_t> in_splits, const Call& call) override;
  Handle send(at::Tensor tensor, int peer, int tag, const Call& call) override;
  Handle receive(at::Tensor tensor, int peer, int tag, const Call& call) override;
  void barrier(const Call& call) override { inner_->barrier(call); }
  void abort(std::string_view why) override { inner_->abort(why); }

 private:
  Handle delayed(Handle handle);

  std::unique_ptr<Communicator> inner_;
  std::chrono::nanoseconds delay_;
  std::shared_ptr<DelayRecord> record_;
};

}  // namespace phalanx
