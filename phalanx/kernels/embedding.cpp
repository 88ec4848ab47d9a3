#include "phalanx/kernels/embedding.h"

#include "phalanx/base/vectorize.h"
#include "phalanx/kernels/parallel.h"

namespace phalanx::kernels {
namespace {

template <class T>
[[gnu::always_inline]] inline void add_to(T* sum, const T* x, int64_t count) {
  for (int64_t j = 0; j < count; ++j) sum[j] += x[j];
}

}  // namespace

template <class T>
void embed(const T* tokens, const T* positions, const int64_t* indices, T* output, int64_t rows,
           int64_t length, int64_t first_position, int64_t columns) {
  parallel_for(0, rows, 16, [=](int64_t first, int64_t last) {
    vectorized([=]() __attribute__((always_inline)) {
      for (int64_t row = first; row < last; ++row) {
        const T* token = tokens + indices[row] * columns;
        const T* position = positions + (first_position + row % length) * columns;
        T* y = output + row * columns;
        for (int64_t j = 0; j < columns; ++j) y[j] = token[j] + position[j];
      }
    });
  });
}

template <class T>
void scatter_rows(const T* gradient, const int64_t* indices, T* table, int64_t rows,
                  int64_t columns) {
  parallel_for(0, columns, 64, [=](int64_t first, int64_t last) {
    vectorized([=]() __attribute__((always_inline)) {
      for (int64_t row = 0; row < rows; ++row)
        add_to(table + indices[row] * columns + first, gradient + row * columns + first,
               last - first);
    });
  });
}

template <class T>
void sum_positions(const T* gradient, T* table, int64_t rows, int64_t length,
                   int64_t first_position, int64_t columns) {
  parallel_for(0, length, 4, [=](int64_t first, int64_t last) {
    vectorized([=]() __attribute__((always_inline)) {
      for (int64_t i = first; i < last; ++i)
        for (int64_t row = i; row < rows; row += length)
          add_to(table + (first_position + i) * columns, gradient + row * columns, columns);
    });
  });
}

template void embed(const float*, const float*, const int64_t*, float*, int64_t, int64_t, int64_t,
                    int64_t);
template void embed(const double*, const double*, const int64_t*, double*, int64_t, int64_t,
                    int64_t, int64_t);
template void scatter_rows(const float*, const int64_t*, float*, int64_t, int64_t);
template void scatter_rows(const double*, const int64_t*, double*, int64_t, int64_t);
template void sum_positions(const float*, float*, int64_t, int64_t, int64_t, int64_t);
template void sum_positions(const double*, double*, int64_t, int64_t, int64_t, int64_t);

}  // namespace phalanx::kernels
