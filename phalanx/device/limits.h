#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <functional>

namespace phalanx {

/// What was measured, per second: the best sample and the median one.
struct Rate {
  double best = 0, median = 0;
  int samples = 0;
};

/// Runs `work`, which does `amount` of something, once to warm up and then again and again for
/// `seconds`, at least three times.
Rate measure_rate(double amount, double seconds, const std::function<void()>& work);

/// Floating-point operations per second of square matrix products of matrix_product_size, with this
/// process's threads: the limit that "% GEMM" of a run and `phalanx bench` mean. Ranks of a host
/// measure at the same time, since they share its cores.
inline constexpr int64_t matrix_product_size = 1024;
Rate matrix_product_rate(at::ScalarType type, double seconds = 0.2);

/// Bytes per second that one thread copies between buffers of `bytes`: the traffic is twice that.
Rate copy_rate(int64_t bytes, double seconds);

}  // namespace phalanx
