#include "phalanx/device/limits.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>

namespace phalanx {

Rate measure_rate(double amount, double seconds, const std::function<void()>& work) {
  using Clock = std::chrono::steady_clock;
  work();
  std::vector<double> samples;
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  while (samples.size() < 3 || Clock::now() < end) {
    const auto start = Clock::now();
    work();
    samples.push_back(std::chrono::duration<double>(Clock::now() - start).count());
  }
  std::sort(samples.begin(), samples.end());
  return {amount / samples.front(), amount / samples[samples.size() / 2],
          static_cast<int>(samples.size())};
}

Rate matrix_product_rate(at::ScalarType type, double seconds) {
  constexpr int64_t size = matrix_product_size;
  const auto options = at::TensorOptions().dtype(type);
  const at::Tensor a = at::full({size, size}, 0.5, options), b = a + 1;
  at::Tensor out = at::empty({size, size}, options);
  return measure_rate(2.0 * size * size * size, seconds, [&] { at::mm_out(out, a, b); });
}

Rate copy_rate(int64_t bytes, double seconds) {
  const at::Tensor from = at::full({bytes}, 1, at::kByte), to = at::full({bytes}, 2, at::kByte);
  return measure_rate(static_cast<double>(bytes), seconds,
                      [&] { std::memcpy(to.data_ptr(), from.data_ptr(), bytes); });
}

}  // namespace phalanx
