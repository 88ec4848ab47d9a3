#pragma once

#include <chrono>
#include <memory>

#include "phalanx/comm/forwarding.h"

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
class DelayedCommunicator : public ForwardingCommunicator {
 public:
  DelayedCommunicator(std::unique_ptr<Communicator> inner, std::chrono::nanoseconds delay)
      : ForwardingCommunicator(std::move(inner)),
        delay_(delay),
        record_(std::make_shared<DelayRecord>()) {}

  const DelayRecord& record() const { return *record_; }
  void reset() { *record_ = {}; }

  Handle all_gather(at::Tensor out, at::Tensor in, const Call& call) override;
  Handle reduce_scatter(at::Tensor out, at::Tensor in, Op op, const Call& call,
                        bool accumulate = false) override;
  Handle all_reduce(at::Tensor inout, Op op, const Call& call) override;

 private:
  Handle delayed(Handle handle);

  std::chrono::nanoseconds delay_;
  std::shared_ptr<DelayRecord> record_;
};

}  // namespace phalanx
