#include "phalanx/kernels/cross_entropy.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "phalanx/base/vectorize.h"
#include "phalanx/kernels/parallel.h"
#include "phalanx/kernels/vector.h"

namespace phalanx::kernels {
namespace {

constexpr int64_t block = 2048;  // columns summed in T before the sum goes on in double

// The largest element, or NaN if there is one.
template <class T>
[[gnu::always_inline]] inline T largest(const T* x, int64_t count) {
  const T lowest = -std::numeric_limits<T>::infinity();
  Vector<T> most = Vector<T>{} + lowest;
  for_vectors<T>(count, [&](int64_t j, auto lanes) __attribute__((always_inline)) {
    Vector<T> v;
    load(v, x + j, lanes, lowest);
    most = v > most || v != v ? v : most;
  });
  T result = lowest;
  for (int64_t i = 0; i < width<T>; ++i)
    if (most[i] > result || most[i] != most[i]) result = most[i];
  return result;
}

// Sum of exp(x - shift); leaves the terms in `x` if `keep`.
template <class T>
[[gnu::always_inline]] inline double sum_exponentials(T* x, int64_t count, T shift, bool keep) {
  double total = 0;
  for (int64_t start = 0; start < count; start += block) {
    T* part = x + start;
    Vector<T> sum{};
    for_vectors<T>(std::min(block, count - start),
                   [&](int64_t j, auto lanes) __attribute__((always_inline)) {
                     Vector<T> v;
                     load(v, part + j, lanes, -std::numeric_limits<T>::infinity());
                     v -= shift;
                     exponential(v, v);
                     if (keep) store(part + j, v, lanes);
                     sum += v;
                   });
    total += double(sum_of<T>(sum));
  }
  return total;
}

template <class T>
[[gnu::always_inline]] inline void multiply(T* x, int64_t count, T factor) {
  for_vectors<T>(count, [=](int64_t j, auto lanes) __attribute__((always_inline)) {
    Vector<T> v;
    load(v, x + j, lanes);
    v *= factor;
    store(x + j, v, lanes);
  });
}

template <class T>
[[gnu::always_inline]] inline double row_loss(T* x, int64_t target, double scale,
                                              bool write_gradient, int64_t classes) {
  const T shift = largest(x, classes);
  const T chosen = x[target];
  const double sum = sum_exponentials(x, classes, shift, write_gradient);
  if (write_gradient) {
    multiply(x, classes, T(scale / sum));
    x[target] -= T(scale);
  }
  return std::log(sum) + double(shift) - double(chosen);
}

}  // namespace

template <class T>
void cross_entropy(T* logits, const int64_t* targets, int64_t ignored, double scale,
                   bool write_gradient, double* losses, int64_t rows, int64_t classes) {
  parallel_for(0, rows, 4, [=](int64_t first, int64_t last) {
    vectorized([=]() __attribute__((always_inline)) {
      for (int64_t row = first; row < last; ++row) {
        T* x = logits + row * classes;
        losses[row] = 0;
        if (targets[row] != ignored)
          losses[row] = row_loss(x, targets[row], scale, write_gradient, classes);
        else if (write_gradient)
          std::fill(x, x + classes, T(0));
      }
    });
  });
}

template void cross_entropy(float*, const int64_t*, int64_t, double, bool, double*, int64_t,
                            int64_t);
template void cross_entropy(double*, const int64_t*, int64_t, double, bool, double*, int64_t,
                            int64_t);

}  // namespace phalanx::kernels
