#include "phalanx/comm/shared_communicator.h"

#include <exception>

#include "phalanx/base/text.h"
#include "phalanx/comm/arguments.h"
#include "phalanx/comm/shared_calls.h"

namespace phalanx {
namespace {

class SharedCommunicator : public Communicator {
 public:
  explicit SharedCommunicator(std::shared_ptr<shared::Group> group) : group_(std::move(group)) {}
  ~SharedCommunicator() override {
    // Peers must not wait for a rank that is on its way out with an error.
    if (std::uncaught_exceptions() > unwinding_)
      group_->abort(text("rank ", rank(), " of group ", name(), " left with an error of its own"));
    group_->close();
  }

  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  std::string_view name() const override { return group_->name(); }
  std::string_view transport() const override { return "shared memory"; }

  at::Tensor allocate(int64_t bytes) override { return group_->allocate(bytes, false); }
  at::Tensor allocate_window(int64_t part_bytes) override {
    return group_->allocate(part_bytes, true);
  }

  Handle all_gather(at::Tensor out, at::Tensor in, const Call& call) override {
    check_all_gather(*this, out, in, call);
    return Handle(shared::all_gather(group_, std::move(out), std::move(in), call));
  }
  Handle reduce_scatter(at::Tensor out, at::Tensor in, Op op, const Call& call,
                        bool accumulate) override {
    check_reduce_scatter(*this, out, in, call);
    return Handle(
        shared::reduce_scatter(group_, std::move(out), std::move(in), op, call, accumulate));
  }
  Handle all_reduce(at::Tensor inout, Op op, const Call& call) override {
    check_all_reduce(*this, inout, call);
    return Handle(shared::all_reduce(group_, std::move(inout), op, call));
  }
  Handle broadcast(at::Tensor inout, int root, const Call& call) override {
    check_broadcast(*this, inout, root, call);
    return Handle(shared::broadcast(group_, std::move(inout), root, call));
  }
  Handle all_to_all(at::Tensor out, std::span<const int64_t> out_splits, at::Tensor in,
                    std::span<const int64_t> in_splits, const Call& call) override {
    check_all_to_all(*this, out, out_splits, in, in_splits, call);
    return Handle(
        shared::all_to_all(group_, std::move(out), out_splits, std::move(in), in_splits, call));
  }
  Handle send(at::Tensor tensor, int peer, int tag, const Call& call) override {
    check_message(*this, "send", tensor, peer, call);
    return Handle(shared::send(group_, std::move(tensor), peer, tag, call));
  }
  Handle receive(at::Tensor tensor, int peer, int tag, const Call& call) override {
    check_message(*this, "receive", tensor, peer, call);
    return Handle(shared::receive(group_, std::move(tensor), peer, tag, call));
  }
  void barrier(const Call& call) override { Handle(shared::barrier(group_, call)).wait(); }
  void abort(std::string_view why) override { group_->abort(why); }

 private:
  std::shared_ptr<shared::Group> group_;
  const int unwinding_ = std::uncaught_exceptions();
};

}  // namespace

std::unique_ptr<Communicator> shared_communicator(std::string name, std::string key,
                                                  std::vector<int> world_ranks, int rank,
                                                  std::shared_ptr<shared::Host> host,
                                                  std::chrono::milliseconds deadline,
                                                  Ledger& ledger, CallHistory& history) {
  return std::make_unique<SharedCommunicator>(
      std::make_shared<shared::Group>(std::move(name), std::move(key), std::move(world_ranks), rank,
                                      std::move(host), deadline, ledger, history));
}

}  // namespace phalanx
