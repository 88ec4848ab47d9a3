#pragma once

#include <cstdint>
#include <vector>

#include "phalanx/kernels/parallel.h"

namespace phalanx::kernels {

/// Sums over rows, the same for any number of threads: rows go in chunks of fixed size, each chunk
/// has its own partial sums, and the partial sums are added in order.
constexpr int64_t rows_per_chunk = 64;

template <class T>
class ColumnSums {
 public:
  ColumnSums(int64_t rows, int64_t columns)
      : columns_(columns),
        chunks_((rows + rows_per_chunk - 1) / rows_per_chunk),
        partial_(size_t(chunks_ * columns), T(0)) {}
  T* of_chunk(int64_t chunk) { return partial_.data() + chunk * columns_; }
  /// result[column] = the sum over all chunks.
  void finish(T* result) {
    for (int64_t j = 0; j < columns_; ++j) result[j] = T(0);
    for (int64_t chunk = 0; chunk < chunks_; ++chunk) {
      const T* part = of_chunk(chunk);
      for (int64_t j = 0; j < columns_; ++j) result[j] += part[j];
    }
  }

 private:
  int64_t columns_, chunks_;
  std::vector<T> partial_;
};

/// Calls `body(chunk, first_row, last_row)` for every chunk of rows, in parallel.
template <class Body>
void for_row_chunks(int64_t rows, const Body& body) {
  const int64_t chunks = (rows + rows_per_chunk - 1) / rows_per_chunk;
  parallel_for(0, chunks, 1, [&](int64_t first, int64_t last) {
    for (int64_t chunk = first; chunk < last; ++chunk) {
      const int64_t begin = chunk * rows_per_chunk;
      body(chunk, begin, begin + rows_per_chunk < rows ? begin + rows_per_chunk : rows);
    }
  });
}

}  // namespace phalanx::kernels
