#include "phalanx/comm/gloo_communicator.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <cstring>
#include <future>

#include "phalanx/base/error.h"
#include "phalanx/comm/arguments.h"
#include "phalanx/comm/reduce.h"
#include "phalanx/device/failure.h"

namespace phalanx {
namespace {

using gloo_transport::bytes_of;
using gloo_transport::Group;
using gloo_transport::WorkPointer;

at::Tensor new_bytes(int64_t bytes) { return at::empty({bytes}, at::kByte); }

/// A call whose bytes Gloo moves, and what is done with them at the end.
class Moved : public Pending {
 public:
  Moved(std::shared_ptr<Group> group, const Signature& signature, uint64_t record, const Call& call)
      : group_(std::move(group)),
        signature_(signature),
        unit_(call.unit),
        purpose_(call.purpose),
        record_(record),
        deadline_(call.deadline.count() ? call.deadline : group_->deadline()) {}

  void wait() override {
    if (complete_) return;
    group_->check();
    const auto begin = std::chrono::steady_clock::now();
    try {
      if (work) wait_for(*work);
      if (second.valid()) {
        if (second.wait_for(deadline_) != std::future_status::ready)
          fail(ExitCode::peer_lost, "the deadline of ", deadline_.count(), " ms passed");
        wait_for(*second.get());
      }
    } catch (const std::exception& error) {
      group_->history.end(record_, CallRecord::State::failed);
      group_->fail_group(describe(), first_line(error.what()));
    }
    group_->ledger.add_wait(std::chrono::steady_clock::now() - begin);
    complete_ = true;
    if (finish) finish();
    finish = nullptr;
    work.reset();
    if (received) group_->ledger.add(purpose_, received);
    group_->history.end(record_, CallRecord::State::complete);
  }
  void wait_inputs() override { wait(); }
  bool done() const override {
    if (complete_) return true;
    if (second.valid())
      return second.wait_for(std::chrono::seconds(0)) == std::future_status::ready &&
             second.get()->isCompleted();
    return !work || work->isCompleted();
  }

  WorkPointer work;                        ///< null: nothing to move
  std::shared_future<WorkPointer> second;  ///< issued by Gloo's thread once `work` is done
  std::function<void()> finish;
  int64_t received = 0;
  const char* message = nullptr;  ///< "send to", "receive from"
  int peer = 0, tag = 0;          ///< of a message

 private:
  void wait_for(c10d::Work& moving) { moving.wait(deadline_); }
  std::string describe() const {
    const std::string what =
        message ? text(message, " rank ", peer, ", tag ", tag)
                : text(name(signature_.collective), " of ", signature_.elements, " ",
                       c10::toString(static_cast<at::ScalarType>(signature_.dtype)));
    return text(what, ", ", purpose_, " of ", unit_);
  }

  std::shared_ptr<Group> group_;
  Signature signature_;
  std::string unit_, purpose_;
  uint64_t record_;
  std::chrono::milliseconds deadline_;
  bool complete_ = false;
};

std::vector<const void*> parts_of(const at::Tensor& bytes, int size, int64_t part) {
  std::vector<const void*> inputs;
  for (int other = 0; other < size; ++other)
    inputs.push_back(static_cast<const char*>(bytes.const_data_ptr()) + other * part);
  return inputs;
}

class GlooCommunicator : public Communicator {
 public:
  explicit GlooCommunicator(std::shared_ptr<Group> group) : group_(std::move(group)) {}
  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  std::string_view name() const override { return group_->name(); }
  std::string_view transport() const override { return "gloo"; }
  at::Tensor allocate(int64_t bytes) override { return at::zeros({bytes}, at::kByte); }
  at::Tensor allocate_window(int64_t) override { return {}; }

  Handle all_gather(at::Tensor out, at::Tensor in, const Call& call) override {
    check_all_gather(*this, out, in, call);
    auto made = begin({.collective = Collective::all_gather,
                       .dtype = int8_t(in.scalar_type()),
                       .elements = in.numel()},
                      call, out.nbytes());
    if (in.nbytes() > 0)
      made->work = group_->all_gather(bytes_of(out), bytes_of(in), call.deadline);
    made->received = int64_t(in.nbytes()) * (size() - 1);
    return Handle(made);
  }

  Handle reduce_scatter(at::Tensor out, at::Tensor in, Op op, const Call& call,
                        bool accumulate) override {
    check_reduce_scatter(*this, out, in, call);
    auto made = begin({.collective = Collective::reduce_scatter,
                       .dtype = int8_t(in.scalar_type()),
                       .op = uint8_t(op),
                       .elements = out.numel()},
                      call, in.nbytes());
    const int64_t part = int64_t(out.nbytes());
    if (part == 0) return Handle(made);
    auto come = new_bytes(part * size());
    const std::vector<int64_t> each(size_t(size()), part);
    made->work = group_->all_to_all(come, each, bytes_of(in), each);
    made->finish = [=, size = size()] {
      auto inputs = parts_of(come, size, part);
      reduce(out.mutable_data_ptr(), inputs.data(), size, out.numel(), out.scalar_type(), op,
             accumulate);
    };
    made->received = part * (size() - 1);
    return Handle(made);
  }

  Handle all_reduce(at::Tensor inout, Op op, const Call& call) override {
    check_all_reduce(*this, inout, call);
    auto made = begin({.collective = Collective::all_reduce,
                       .dtype = int8_t(inout.scalar_type()),
                       .op = uint8_t(op),
                       .elements = inout.numel()},
                      call, inout.nbytes());
    const int64_t bytes = int64_t(inout.nbytes());
    if (bytes == 0) return Handle(made);
    if (bytes > direct_sum_bytes) {
      sum_and_share(*made, inout, op, bytes);
      return Handle(made);
    }
    auto come = new_bytes(bytes * size());
    made->work = group_->all_gather(come, bytes_of(inout), call.deadline);
    made->finish = [=, size = size()] {
      auto inputs = parts_of(come, size, bytes);
      reduce(inout.mutable_data_ptr(), inputs.data(), size, inout.numel(), inout.scalar_type(), op,
             false);
    };
    made->received = bytes * (size() - 1);
    return Handle(made);
  }

  Handle broadcast(at::Tensor inout, int root, const Call& call) override {
    check_broadcast(*this, inout, root, call);
    auto made = begin({.collective = Collective::broadcast,
                       .dtype = int8_t(inout.scalar_type()),
                       .root = root,
                       .elements = inout.numel()},
                      call, inout.nbytes());
    if (inout.nbytes() > 0) made->work = group_->broadcast(bytes_of(inout), root, call.deadline);
    made->received = rank() == root ? 0 : int64_t(inout.nbytes());
    return Handle(made);
  }

  Handle all_to_all(at::Tensor out, std::span<const int64_t> out_splits, at::Tensor in,
                    std::span<const int64_t> in_splits, const Call& call) override {
    check_all_to_all(*this, out, out_splits, in, in_splits, call);
    int64_t row = 1;
    for (int64_t dim = 1; dim < in.dim(); ++dim) row *= in.size(dim);
    auto made = begin(
        {.collective = Collective::all_to_all, .dtype = int8_t(in.scalar_type()), .elements = row},
        call, std::max(out.nbytes(), in.nbytes()));
    const int64_t row_bytes = row * int64_t(in.element_size());
    std::vector<int64_t> out_bytes, in_bytes;
    for (int64_t rows : out_splits) out_bytes.push_back(rows * row_bytes);
    for (int64_t rows : in_splits) in_bytes.push_back(rows * row_bytes);
    made->received = int64_t(out.nbytes()) - out_bytes[size_t(rank())];
    made->work = group_->all_to_all(bytes_of(out), out_bytes, bytes_of(in), in_bytes);
    return Handle(made);
  }

  Handle send(at::Tensor tensor, int peer, int tag, const Call& call) override {
    check_message(*this, "send", tensor, peer, call);
    auto made = message("send", "send to", tensor, peer, tag, call);
    if (tensor.nbytes() > 0) made->work = group_->send(bytes_of(tensor), peer, tag);
    return Handle(made);
  }

  Handle receive(at::Tensor tensor, int peer, int tag, const Call& call) override {
    check_message(*this, "receive", tensor, peer, call);
    auto made = message("receive", "receive from", tensor, peer, tag, call);
    if (tensor.nbytes() > 0) made->work = group_->receive(bytes_of(tensor), peer, tag);
    made->received = int64_t(tensor.nbytes());
    return Handle(made);
  }

  void barrier(const Call& call) override {
    auto made = begin({.collective = Collective::barrier}, call, 0);
    made->work = group_->all_gather(new_bytes(size()), new_bytes(1), call.deadline);
    made->wait();
  }

  void abort(std::string_view why) override { group_->leave(why); }

 private:
  std::shared_ptr<Moved> begin(const Signature& signature, const Call& call, size_t bytes) {
    const uint64_t record = group_->begin(signature, call, int64_t(bytes));
    return std::make_shared<Moved>(group_, signature, record, call);
  }

  std::shared_ptr<Moved> message(const char* operation, const char* words, const at::Tensor& tensor,
                                 int peer, int tag, const Call& call) {
    const uint64_t record = group_->begin_message(operation, call, int64_t(tensor.nbytes()));
    auto made = std::make_shared<Moved>(group_, Signature{}, record, call);
    made->message = words;
    made->peer = peer;
    made->tag = tag;
    return made;
  }

  // Every rank sums its part of all inputs, then sends it to all. The second half is issued by
  // Gloo's thread, so that no rank has to wait for it to begin.
  void sum_and_share(Moved& made, const at::Tensor& inout, Op op, int64_t bytes) {
    const int size = this->size(), rank = this->rank();
    const int64_t begin = sum_part(rank, size, bytes);
    const int64_t own = sum_part(rank + 1, size, bytes) - begin;
    std::vector<int64_t> parts;
    for (int other = 0; other < size; ++other)
      parts.push_back(sum_part(other + 1, size, bytes) - sum_part(other, size, bytes));
    const std::vector<int64_t> each(size_t(size), own);
    auto come = new_bytes(own * size);
    made.received = own * (size - 1) + bytes - own;
    made.work = group_->all_to_all(come, each, bytes_of(inout), parts);
    auto promise = std::make_shared<std::promise<WorkPointer>>();
    made.second = promise->get_future().share();
    // It must not own the group, which would then end on this very thread of its own.
    made.work->getFuture()->addCallback([=, group = group_.get()](c10::ivalue::Future& future) {
      try {
        if (future.hasError()) std::rethrow_exception(future.exception_ptr());
        auto inputs = parts_of(come, size, own);
        auto* to = static_cast<char*>(come.mutable_data_ptr());
        reduce(to, inputs.data(), size, own / int64_t(inout.element_size()), inout.scalar_type(),
               op, false);
        for (int other = 1; other < size; ++other) std::memcpy(to + other * own, to, size_t(own));
        promise->set_value(group->all_to_all(bytes_of(inout), parts, come, each, true));
      } catch (...) {
        promise->set_exception(std::current_exception());
      }
    });
  }

  std::shared_ptr<Group> group_;
};

}  // namespace

std::unique_ptr<Communicator> gloo_communicator(std::shared_ptr<gloo_transport::Group> group) {
  return std::make_unique<GlooCommunicator>(std::move(group));
}

}  // namespace phalanx
