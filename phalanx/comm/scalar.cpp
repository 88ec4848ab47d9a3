#include "phalanx/comm/scalar.h"

#include <ATen/ops/full.h>

namespace phalanx {

double all_reduce(Communicator& group, double value, Op op, const Call& call) {
  const at::Tensor all = at::full({1}, value, at::TensorOptions().dtype(at::kDouble));
  group.all_reduce(all, op, call).wait();
  return *all.const_data_ptr<double>();
}

}  // namespace phalanx
