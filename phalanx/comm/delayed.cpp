#include "phalanx/comm/delayed.h"

#include <algorithm>
#include <thread>

namespace phalanx {
namespace {

using Clock = std::chrono::steady_clock;

class DelayedPending : public Pending {
 public:
  DelayedPending(Handle inner, std::chrono::nanoseconds delay, std::shared_ptr<DelayRecord> record)
      : inner_(std::move(inner)), delay_(delay), due_(Clock::now() + delay), record_(record) {}

  void wait() override {
    inner_.wait();
    if (waited_) return;
    waited_ = true;
    const auto now = Clock::now();
    record_->total += delay_;
    record_->exposed += std::max(std::chrono::nanoseconds(0), due_ - now);
    ++record_->calls;
    std::this_thread::sleep_until(due_);
  }
  void release() override { inner_.release(); }
  void wait_inputs() override { inner_.wait_inputs(); }
  bool done() const override { return Clock::now() >= due_ && inner_.done(); }

 private:
  Handle inner_;
  std::chrono::nanoseconds delay_;
  Clock::time_point due_;
  std::shared_ptr<DelayRecord> record_;
  bool waited_ = false;
};

}  // namespace

Handle DelayedCommunicator::delayed(Handle handle) {
  return Handle(std::make_shared<DelayedPending>(std::move(handle), delay_, record_));
}

Handle DelayedCommunicator::all_gather(at::Tensor out, at::Tensor in, const Call& call) {
  return delayed(inner_->all_gather(std::move(out), std::move(in), call));
}

Handle DelayedCommunicator::reduce_scatter(at::Tensor out, at::Tensor in, Op op, const Call& call,
                                           bool accumulate) {
  return delayed(inner_->reduce_scatter(std::move(out), std::move(in), op, call, accumulate));
}

Handle DelayedCommunicator::all_reduce(at::Tensor inout, Op op, const Call& call) {
  return delayed(inner_->all_reduce(std::move(inout), op, call));
}

}  // namespace phalanx
