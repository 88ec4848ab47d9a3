#include "phalanx/kernels/sum_of_squares.h"

#include <algorithm>
#include <vector>

#include "phalanx/base/error.h"
#include "phalanx/base/vectorize.h"
#include "phalanx/kernels/parallel.h"

namespace phalanx {
namespace {

template <class Scalar>
[[gnu::always_inline]] inline double sum_of_chunk(const Scalar* values, int64_t count) {
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

// Chunks are the same for any number of threads, and are added in order.
template <class Scalar>
double sum(const Scalar* values, int64_t count) {
  constexpr int64_t chunk = 1 << 15;
  std::vector<double> sums(size_t((count + chunk - 1) / chunk));
  parallel_for(0, int64_t(sums.size()), 1, [&](int64_t first, int64_t last) {
    double* to = sums.data();
    vectorized([=]() __attribute__((always_inline)) {
      for (int64_t i = first; i < last; ++i)
        to[i] = sum_of_chunk(values + i * chunk, std::min(chunk, count - i * chunk));
    });
  });
  double total = 0;
  for (double value : sums) total += value;
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
