#include <ATen/ops/zeros.h>

#include <cstring>

#include "phalanx/base/error.h"
#include "phalanx/comm/arguments.h"
#include "phalanx/comm/reduce.h"

namespace phalanx {
namespace {

void copy_whole(const at::Tensor& out, const at::Tensor& in) {
  if (out.const_data_ptr() != in.const_data_ptr() && in.nbytes() > 0)
    std::memmove(out.mutable_data_ptr(), in.const_data_ptr(), in.nbytes());
}

class SingleCommunicator : public Communicator {
 public:
  explicit SingleCommunicator(std::string name) : name_(std::move(name)) {}
  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::string_view name() const override { return name_; }
  std::string_view transport() const override { return "single"; }
  at::Tensor allocate(int64_t bytes) override { return at::zeros({bytes}, at::kByte); }
  at::Tensor allocate_window(int64_t part_bytes) override { return allocate(part_bytes); }

  Handle all_gather(at::Tensor out, at::Tensor in, const Call& call) override {
    check_all_gather(*this, out, in, call);
    copy_whole(out, in);
    return {};
  }
  Handle reduce_scatter(at::Tensor out, at::Tensor in, Op op, const Call& call,
                        bool accumulate) override {
    check_reduce_scatter(*this, out, in, call);
    const void* input = in.const_data_ptr();
    if (accumulate)
      reduce(out.mutable_data_ptr(), &input, 1, out.numel(), out.scalar_type(), op, true);
    else
      copy_whole(out, in);
    return {};
  }
  Handle all_reduce(at::Tensor inout, Op, const Call& call) override {
    check_all_reduce(*this, inout, call);
    return {};
  }
  Handle broadcast(at::Tensor inout, int root, const Call& call) override {
    check_broadcast(*this, inout, root, call);
    return {};
  }
  Handle all_to_all(at::Tensor out, std::span<const int64_t> out_splits, at::Tensor in,
                    std::span<const int64_t> in_splits, const Call& call) override {
    check_all_to_all(*this, out, out_splits, in, in_splits, call);
    copy_whole(out, in);
    return {};
  }
  Handle send(at::Tensor tensor, int peer, int, const Call& call) override {
    check_message(*this, "send", tensor, peer, call);
    return {};
  }
  Handle receive(at::Tensor tensor, int peer, int, const Call& call) override {
    check_message(*this, "receive", tensor, peer, call);
    return {};
  }
  void barrier(const Call&) override {}
  void abort(std::string_view why) override { throw Error(ExitCode::peer_lost, std::string(why)); }

 private:
  std::string name_;
};

}  // namespace

std::unique_ptr<Communicator> single_communicator(std::string name) {
  return std::make_unique<SingleCommunicator>(std::move(name));
}

}  // namespace phalanx
