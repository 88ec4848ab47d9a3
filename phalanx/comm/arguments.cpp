#include "phalanx/comm/arguments.h"

#include <numeric>

#include "phalanx/base/error.h"
#include "phalanx/comm/reduce.h"

namespace phalanx {
namespace {

void check(const Communicator& group, const at::Tensor& tensor, const char* operation,
           const char* which, const Call& call) {
  const auto refuse = [&](const char* why) {
    fail(ExitCode::usage, operation, " in group ", group.name(), " (", call.purpose, " of ",
         call.unit, "): ", which, " ", why);
  };
  if (!tensor.defined()) refuse("is undefined");
  if (!tensor.device().is_cpu()) refuse("is not in host memory, which this transport needs");
  if (!tensor.is_contiguous()) refuse("is not contiguous; call contiguous() first");
}

void check_dtype(const Communicator& group, const at::Tensor& tensor, const char* operation,
                 const Call& call) {
  require(can_reduce(tensor.scalar_type()), ExitCode::usage, operation, " in group ", group.name(),
          " (", call.purpose, " of ", call.unit, ") cannot reduce tensors of ",
          c10::toString(tensor.scalar_type()), "; convert them first to ", reducible);
}

void check_sizes(const Communicator& group, const at::Tensor& whole, const at::Tensor& part,
                 const char* operation, const Call& call) {
  require(whole.numel() == part.numel() * group.size() && whole.scalar_type() == part.scalar_type(),
          ExitCode::usage, operation, " in group ", group.name(), " (", call.purpose, " of ",
          call.unit, "): the whole has ", whole.numel(), " ", c10::toString(whole.scalar_type()),
          " and the part ", part.numel(), " ", c10::toString(part.scalar_type()),
          "; the whole must have ", group.size(), " times the elements, of the same type");
}

}  // namespace

void check_all_gather(const Communicator& group, const at::Tensor& out, const at::Tensor& in,
                      const Call& call) {
  check(group, out, "all_gather", "the output", call);
  check(group, in, "all_gather", "the input", call);
  check_sizes(group, out, in, "all_gather", call);
}

void check_reduce_scatter(const Communicator& group, const at::Tensor& out, const at::Tensor& in,
                          const Call& call) {
  check(group, out, "reduce_scatter", "the output", call);
  check(group, in, "reduce_scatter", "the input", call);
  check_sizes(group, in, out, "reduce_scatter", call);
  check_dtype(group, in, "reduce_scatter", call);
}

void check_all_reduce(const Communicator& group, const at::Tensor& inout, const Call& call) {
  check(group, inout, "all_reduce", "the tensor", call);
  check_dtype(group, inout, "all_reduce", call);
}

void check_broadcast(const Communicator& group, const at::Tensor& inout, int root,
                     const Call& call) {
  check(group, inout, "broadcast", "the tensor", call);
  require(root >= 0 && root < group.size(), ExitCode::usage, "broadcast in group ", group.name(),
          " from rank ", root, ", which is not one of its ", group.size(), " ranks");
}

void check_all_to_all(const Communicator& group, const at::Tensor& out,
                      std::span<const int64_t> out_splits, const at::Tensor& in,
                      std::span<const int64_t> in_splits, const Call& call) {
  check(group, out, "all_to_all", "the output", call);
  check(group, in, "all_to_all", "the input", call);
  const auto check_splits = [&](const char* which, const at::Tensor& tensor,
                                std::span<const int64_t> splits) {
    bool negative = false;
    for (int64_t rows : splits) negative |= rows < 0;
    const int64_t rows = std::accumulate(splits.begin(), splits.end(), int64_t(0));
    require(tensor.dim() > 0 && int(splits.size()) == group.size() && !negative &&
                rows == tensor.size(0),
            ExitCode::usage, "all_to_all in group ", group.name(), " (", call.purpose, " of ",
            call.unit, "): ", which, " has ", tensor.dim() ? tensor.size(0) : 0, " rows and ",
            splits.size(), " splits that add up to ", rows, "; give one split per rank (",
            group.size(), ") that add up to the rows");
  };
  check_splits("the output", out, out_splits);
  check_splits("the input", in, in_splits);
  const auto own = static_cast<size_t>(group.rank());
  require(in_splits[own] == out_splits[own], ExitCode::usage, "all_to_all in group ", group.name(),
          " (", call.purpose, " of ", call.unit, "): rank ", own, " has ", in_splits[own],
          " rows for itself in the input and room for ", out_splits[own],
          " in the output; make both equal");
  require(out.scalar_type() == in.scalar_type() && out.sizes().slice(1) == in.sizes().slice(1),
          ExitCode::usage, "all_to_all in group ", group.name(), " (", call.purpose, " of ",
          call.unit, "): the input is [", join(in.sizes()), "] of ",
          c10::toString(in.scalar_type()), " and the output [", join(out.sizes()), "] of ",
          c10::toString(out.scalar_type()), "; make their rows equal in shape and type");
}

void check_message(const Communicator& group, const char* operation, const at::Tensor& tensor,
                   int peer, const Call& call) {
  check(group, tensor, operation, "the tensor", call);
  require(peer >= 0 && peer < group.size() && peer != group.rank(), ExitCode::usage, operation,
          " in group ", group.name(), " between rank ", group.rank(), " and rank ", peer,
          "; the peer must be another of its ", group.size(), " ranks");
}

}  // namespace phalanx
