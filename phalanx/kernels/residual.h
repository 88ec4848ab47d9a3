#pragma once

#include <cstdint>

namespace phalanx::kernels {

/// output = residual + branch + bias. Row-major [rows, columns]; bias [columns]. float and double.
template <class T>
void add_bias(const T* residual, const T* branch, const T* bias, T* output, int64_t rows,
              int64_t columns);

/// sums[column] = the sum of x [rows, columns] over rows; the same for any number of threads.
template <class T>
void column_sums(const T* x, T* sums, int64_t rows, int64_t columns);

}  // namespace phalanx::kernels
