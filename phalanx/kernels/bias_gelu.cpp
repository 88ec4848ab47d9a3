#include "phalanx/kernels/bias_gelu.h"

#include "phalanx/base/vectorize.h"
#include "phalanx/kernels/column_sums.h"
#include "phalanx/kernels/parallel.h"
#include "phalanx/kernels/vector.h"

namespace phalanx::kernels {
namespace {

// gelu(x) = x / 2 (1 + tanh(u)) = x s(z) with z = 2 u = 2 sqrt(2 / pi) (x + 0.044715 x^3) and s the
// logistic function, so one exponential and one division are enough.
constexpr double linear_factor = 1.5957691216057308, cubic_factor = 0.044715;

template <class T>
[[gnu::always_inline]] inline void logistic_of_z(Vector<T>& s, const Vector<T>& x) {
  const Vector<T> minus_z = x * (T(-linear_factor * cubic_factor) * (x * x) - T(linear_factor));
  Vector<T> e;
  exponential(e, minus_z);
  s = T(1) / (T(1) + e);
}

template <class T>
[[gnu::always_inline]] inline void gelu(Vector<T>& y, const Vector<T>& x) {
  Vector<T> s;
  logistic_of_z<T>(s, x);
  y = x * s;
}

template <class T>
[[gnu::always_inline]] inline void gelu_derivative(Vector<T>& d, const Vector<T>& x) {
  Vector<T> s;
  logistic_of_z<T>(s, x);
  const Vector<T> z_slope = T(3 * linear_factor * cubic_factor) * (x * x) + T(linear_factor);
  d = s + x * s * (T(1) - s) * z_slope;
}

}  // namespace

template <class T>
void bias_gelu(const T* input, const T* bias, T* output, int64_t rows, int64_t columns) {
  parallel_for(0, rows, 8, [=](int64_t first, int64_t last) {
    vectorized([=]() __attribute__((always_inline)) {
      for (int64_t row = first; row < last; ++row) {
        const T* x = input + row * columns;
        T* y = output + row * columns;
        for_vectors<T>(columns, [=](int64_t j, auto lanes) __attribute__((always_inline)) {
          Vector<T> v, b;
          load(v, x + j, lanes), load(b, bias + j, lanes);
          v += b;
          gelu<T>(v, v);
          store(y + j, v, lanes);
        });
      }
    });
  });
}

template <class T>
void bias_gelu_backward(const T* output_gradient, const T* input, const T* bias, T* input_gradient,
                        T* bias_gradient, int64_t rows, int64_t columns) {
  ColumnSums<T> sums(rows, columns);
  for_row_chunks(rows, [&](int64_t chunk, int64_t first, int64_t last) {
    T* sum = sums.of_chunk(chunk);
    vectorized([=]() __attribute__((always_inline)) {
      for (int64_t row = first; row < last; ++row) {
        const T *x = input + row * columns, *g = output_gradient + row * columns;
        T* y = input_gradient + row * columns;
        for_vectors<T>(columns, [=](int64_t j, auto lanes) __attribute__((always_inline)) {
          Vector<T> v, b, s;
          load(v, x + j, lanes), load(b, bias + j, lanes);
          v += b;
          gelu_derivative<T>(v, v);
          load(b, g + j, lanes), load(s, sum + j, lanes);
          v *= b;
          s += v;
          store(y + j, v, lanes), store(sum + j, s, lanes);
        });
      }
    });
  });
  sums.finish(bias_gradient);
}

template void bias_gelu(const float*, const float*, float*, int64_t, int64_t);
template void bias_gelu(const double*, const double*, double*, int64_t, int64_t);
template void bias_gelu_backward(const float*, const float*, const float*, float*, float*, int64_t,
                                 int64_t);
template void bias_gelu_backward(const double*, const double*, const double*, double*, double*,
                                 int64_t, int64_t);

}  // namespace phalanx::kernels
