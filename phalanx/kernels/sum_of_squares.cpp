#include "phalanx/kernels/sum_of_squares.h"

#include "phalanx/base/error.h"

namespace phalanx {
namespace {

template <class Scalar>
double sum(const Scalar* values, int64_t count) {
  // Independent lanes, so that the compiler may use vectors without reordering a sum.
  constexpr int64_t lanes = 16;
  double partial[lanes] = {};
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes)
    for (int64_t lane = 0; lane < lanes; ++lane) {
      const double value = values[i + lane];
      partial[lane] += value * value;
    }
  for (int64_t lane = 0; i < count; ++i, ++lane) partial[lane] += double(values[i]) * values[i];
  double total = 0;
  for (double value : partial) total += value;
  return total;
}

}  // namespace

double sum_of_squares(const at::Tensor& tensor) {
  require(tensor.is_contiguous(), ExitCode::usage, "sum_of_squares: the tensor is not contiguous");
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return sum(tensor.const_data_ptr<float>(), tensor.numel());
    case at::kDouble:
      return sum(tensor.const_data_ptr<double>(), tensor.numel());
    default:
      fail(ExitCode::usage, "sum_of_squares: a tensor of float32 or float64 is needed");
  }
}

}  // namespace phalanx
