#include "phalanx/kernels/residual.h"

#include "phalanx/base/vectorize.h"
#include "phalanx/kernels/column_sums.h"
#include "phalanx/kernels/parallel.h"

namespace phalanx::kernels {

template <class T>
void add_bias(const T* residual, const T* branch, const T* bias, T* output, int64_t rows,
              int64_t columns) {
  parallel_for(0, rows, 16, [=](int64_t first, int64_t last) {
    vectorized([=]() __attribute__((always_inline)) {
      for (int64_t row = first; row < last; ++row) {
        const T *x = residual + row * columns, *b = branch + row * columns;
        T* y = output + row * columns;
        for (int64_t j = 0; j < columns; ++j) y[j] = x[j] + b[j] + bias[j];
      }
    });
  });
}

template <class T>
void column_sums(const T* x, T* sums, int64_t rows, int64_t columns) {
  ColumnSums<T> partial(rows, columns);
  for_row_chunks(rows, [&](int64_t chunk, int64_t first, int64_t last) {
    T* sum = partial.of_chunk(chunk);
    vectorized([=]() __attribute__((always_inline)) {
      for (int64_t row = first; row < last; ++row)
        for (int64_t j = 0; j < columns; ++j) sum[j] += x[row * columns + j];
    });
  });
  partial.finish(sums);
}

template void add_bias(const float*, const float*, const float*, float*, int64_t, int64_t);
template void add_bias(const double*, const double*, const double*, double*, int64_t, int64_t);
template void column_sums(const float*, float*, int64_t, int64_t);
template void column_sums(const double*, double*, int64_t, int64_t);

}  // namespace phalanx::kernels
