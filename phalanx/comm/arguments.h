#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

#include "phalanx/comm/communicator.h"

namespace phalanx {

// What every transport demands of the tensors of a call. Throw Error(usage) with one sentence.
void check_all_gather(const Communicator&, const at::Tensor& out, const at::Tensor& in,
                      const Call&);
void check_reduce_scatter(const Communicator&, const at::Tensor& out, const at::Tensor& in,
                          const Call&);
void check_all_reduce(const Communicator&, const at::Tensor& inout, const Call&);
void check_broadcast(const Communicator&, const at::Tensor& inout, int root, const Call&);
void check_all_to_all(const Communicator&, const at::Tensor& out,
                      std::span<const int64_t> out_splits, const at::Tensor& in,
                      std::span<const int64_t> in_splits, const Call&);
void check_message(const Communicator&, const char* operation, const at::Tensor& tensor, int peer,
                   const Call&);

}  // namespace phalanx
