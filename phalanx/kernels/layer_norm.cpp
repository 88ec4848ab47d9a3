#include "phalanx/kernels/layer_norm.h"

#include <cmath>
#include <optional>

#include "phalanx/base/vectorize.h"
#include "phalanx/kernels/column_sums.h"
#include "phalanx/kernels/parallel.h"
#include "phalanx/kernels/vector.h"

namespace phalanx::kernels {
namespace {

template <class T>
[[gnu::always_inline]] inline void add_row(const T* residual, const T* branch, const T* bias,
                                           T* stream, int64_t columns) {
  for_vectors<T>(columns, [=](int64_t j, auto lanes) __attribute__((always_inline)) {
    Vector<T> v, b;
    load(v, residual + j, lanes), load(b, branch + j, lanes);
    v += b;
    if (bias) load(b, bias + j, lanes), v += b;
    store(stream + j, v, lanes);
  });
}

template <class T>
[[gnu::always_inline]] inline void normalize_row(const LayerNorm<T>& call, const T* x, T* y,
                                                 T* statistics) {
  const int64_t columns = call.columns;
  Vector<T> sum{};
  for_vectors<T>(columns, [&](int64_t j, auto lanes) __attribute__((always_inline)) {
    Vector<T> v;
    load(v, x + j, lanes);
    sum += v;
  });
  const T mean = sum_of<T>(sum) / T(columns);
  Vector<T> squares{};  // of the differences: no cancellation
  for_vectors<T>(columns, [&](int64_t j, auto lanes) __attribute__((always_inline)) {
    Vector<T> v;
    load(v, x + j, lanes, mean);
    v -= mean;
    squares += v * v;
  });
  const T inverse = T(1) / std::sqrt(sum_of<T>(squares) / T(columns) + T(call.epsilon));
  statistics[0] = mean;
  statistics[1] = inverse;
  const T *weight = call.weight, *bias = call.bias;
  for_vectors<T>(columns, [=](int64_t j, auto lanes) __attribute__((always_inline)) {
    Vector<T> v, w, b;
    load(v, x + j, lanes), load(w, weight + j, lanes), load(b, bias + j, lanes);
    v = (v - mean) * inverse * w + b;
    store(y + j, v, lanes);
  });
}

// Column sums of one chunk of rows.
template <class T>
struct Sums {
  T *weight, *bias, *branch_bias;
};

// With g = weight * output_gradient and n the normalized row:
// gradient = inverse (g - mean(g) - n mean(g n)) + stream_gradient.
template <class T>
[[gnu::always_inline]] inline void backward_row(const LayerNormBackward<T>& call, int64_t row,
                                                const Sums<T>& sums) {
  const int64_t columns = call.columns;
  const T *dy = call.output_gradient + row * columns, *x = call.stream + row * columns;
  const T* extra = call.stream_gradient ? call.stream_gradient + row * columns : nullptr;
  T* dx = call.input_gradient + row * columns;
  const T mean = call.statistics[2 * row], inverse = call.statistics[2 * row + 1];
  const T* weight = call.weight;
  Vector<T> sum{}, product{};
  for_vectors<T>(columns, [&](int64_t j, auto lanes) __attribute__((always_inline)) {
    Vector<T> g, n, w, s;
    load(g, dy + j, lanes), load(n, x + j, lanes), load(w, weight + j, lanes);
    n = (n - mean) * inverse;
    load(s, sums.bias + j, lanes);
    s += g;
    store(sums.bias + j, s, lanes);
    load(s, sums.weight + j, lanes);
    s += g * n;
    store(sums.weight + j, s, lanes);
    g *= w;
    sum += g;
    product += g * n;
  });
  const T mean_gradient = sum_of<T>(sum) / T(columns);
  const T mean_product = sum_of<T>(product) / T(columns);
  for_vectors<T>(columns, [&](int64_t j, auto lanes) __attribute__((always_inline)) {
    Vector<T> g, n, w;
    load(g, dy + j, lanes), load(n, x + j, lanes), load(w, weight + j, lanes);
    n = (n - mean) * inverse;
    g = inverse * (g * w - mean_gradient - n * mean_product);
    if (extra) load(w, extra + j, lanes), g += w;
    store(dx + j, g, lanes);
    if (sums.branch_bias) {
      load(w, sums.branch_bias + j, lanes);
      w += g;
      store(sums.branch_bias + j, w, lanes);
    }
  });
}

}  // namespace

template <class T>
void layer_norm(const LayerNorm<T>& call) {
  parallel_for(0, call.rows, 8, [&](int64_t first, int64_t last) {
    vectorized([&call, first, last]() __attribute__((always_inline)) {
      for (int64_t row = first; row < last; ++row) {
        const int64_t at = row * call.columns;
        const T* x = call.residual + at;
        if (call.branch) {
          add_row(x, call.branch + at, call.branch_bias, call.stream + at, call.columns);
          x = call.stream + at;
        }
        normalize_row(call, x, call.output + at, call.statistics + 2 * row);
      }
    });
  });
}

template <class T>
void layer_norm_backward(const LayerNormBackward<T>& call) {
  ColumnSums<T> weight(call.rows, call.columns), bias(call.rows, call.columns);
  std::optional<ColumnSums<T>> branch_bias;
  if (call.branch_bias_gradient) branch_bias.emplace(call.rows, call.columns);
  for_row_chunks(call.rows, [&](int64_t chunk, int64_t first, int64_t last) {
    const Sums<T> sums = {weight.of_chunk(chunk), bias.of_chunk(chunk),
                          branch_bias ? branch_bias->of_chunk(chunk) : nullptr};
    vectorized([&call, &sums, first, last]() __attribute__((always_inline)) {
      for (int64_t row = first; row < last; ++row) backward_row(call, row, sums);
    });
  });
  weight.finish(call.weight_gradient);
  bias.finish(call.bias_gradient);
  if (branch_bias) branch_bias->finish(call.branch_bias_gradient);
}

template void layer_norm(const LayerNorm<float>&);
template void layer_norm(const LayerNorm<double>&);
template void layer_norm_backward(const LayerNormBackward<float>&);
template void layer_norm_backward(const LayerNormBackward<double>&);

}  // namespace phalanx::kernels
