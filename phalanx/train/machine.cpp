#include "phalanx/train/machine.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>

#include <algorithm>
#include <chrono>

namespace phalanx {

double matrix_product_flops(at::ScalarType type) {
  using Clock = std::chrono::steady_clock;
  constexpr int64_t size = 768;
  const auto options = at::TensorOptions().dtype(type);
  const at::Tensor a = at::ones({size, size}, options), b = at::ones({size, size}, options);
  at::Tensor out = at::empty({size, size}, options);
  at::mm_out(out, a, b);  // starts threads, picks kernels
  const auto end = Clock::now() + std::chrono::milliseconds(200);
  double best = 0;
  while (Clock::now() < end) {
    const auto start = Clock::now();
    at::mm_out(out, a, b);
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    best = std::max(best, 2.0 * size * size * size / seconds);
  }
  return best;
}

}  // namespace phalanx
