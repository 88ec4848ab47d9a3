#pragma once

#include <memory>

#include "phalanx/comm/communicator.h"

namespace phalanx {

/// Passes every call on: the base of communicators that change a few.
class ForwardingCommunicator : public Communicator {
 public:
  explicit ForwardingCommunicator(std::unique_ptr<Communicator> inner) : inner_(std::move(inner)) {}

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  std::string_view name() const override { return inner_->name(); }
  std::string_view transport() const override { return inner_->transport(); }
  int64_t epoch() const override { return inner_->epoch(); }
  at::Tensor allocate(int64_t bytes) override { return inner_->allocate(bytes); }
  at::Tensor allocate_window(int64_t part_bytes) override {
    return inner_->allocate_window(part_bytes);
  }
  Handle all_gather(at::Tensor out, at::Tensor in, const Call& call) override {
    return inner_->all_gather(std::move(out), std::move(in), call);
  }
  Handle reduce_scatter(at::Tensor out, at::Tensor in, Op op, const Call& call,
                        bool accumulate = false) override {
    return inner_->reduce_scatter(std::move(out), std::move(in), op, call, accumulate);
  }
  Handle all_reduce(at::Tensor inout, Op op, const Call& call) override {
    return inner_->all_reduce(std::move(inout), op, call);
  }
  Handle broadcast(at::Tensor inout, int root, const Call& call) override {
    return inner_->broadcast(std::move(inout), root, call);
  }
  Handle all_to_all(at::Tensor out, std::span<const int64_t> out_splits, at::Tensor in,
                    std::span<const int64_t> in_splits, const Call& call) override {
    return inner_->all_to_all(std::move(out), out_splits, std::move(in), in_splits, call);
  }
  Handle send(at::Tensor tensor, int peer, int tag, const Call& call) override {
    return inner_->send(std::move(tensor), peer, tag, call);
  }
  Handle receive(at::Tensor tensor, int peer, int tag, const Call& call) override {
    return inner_->receive(std::move(tensor), peer, tag, call);
  }
  void barrier(const Call& call) override { inner_->barrier(call); }
  void abort(std::string_view why) override { inner_->abort(why); }

 protected:
  std::unique_ptr<Communicator> inner_;
};

}  // namespace phalanx
