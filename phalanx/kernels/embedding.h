#pragma once

#include <cstdint>

namespace phalanx::kernels {

/// output[row] = tokens[indices[row]] + positions[first_position + row % length]. Row-major,
/// `columns` wide; indices must be inside the table. float and double.
template <class T>
void embed(const T* tokens, const T* positions, const int64_t* indices, T* output, int64_t rows,
           int64_t length, int64_t first_position, int64_t columns);

/// table[indices[row]] += gradient[row], in the order of rows for any number of threads (threads
/// share the columns).
template <class T>
void scatter_rows(const T* gradient, const int64_t* indices, T* table, int64_t rows,
                  int64_t columns);

/// table[first_position + i] += the sum of gradient[row] over rows with row % length == i.
template <class T>
void sum_positions(const T* gradient, T* table, int64_t rows, int64_t length,
                   int64_t first_position, int64_t columns);

}  // namespace phalanx::kernels
