#include "phalanx/kernels/dropout.h"

#include <algorithm>

#include "phalanx/base/vectorize.h"
#include "phalanx/kernels/parallel.h"

namespace phalanx::kernels {
namespace {

constexpr int lanes = 16;  // counters at once; each covers four columns

template <class T>
[[gnu::always_inline]] inline void drop_row(const T* x, T* y, RandomKey key, uint64_t outer,
                                            uint32_t inner, uint32_t threshold, T factor,
                                            int64_t columns) {
  for (int64_t start = 0; start < columns; start += 4 * lanes) {
    uint32_t words[4][lanes];
    for (int i = 0; i < lanes; ++i) {
      words[0][i] = uint32_t(start / 4 + i);
      words[1][i] = inner;
      words[2][i] = uint32_t(outer);
      words[3][i] = uint32_t(outer >> 32);
    }
    philox(key, words);
    const int64_t count = std::min<int64_t>(4 * lanes, columns - start);
    for (int64_t j = 0; j < count; ++j)
      y[start + j] = words[j % 4][j / 4] >= threshold ? x[start + j] * factor : T(0);
  }
}

}  // namespace

template <class T>
void dropout(const T* input, T* output, RandomKey key, double probability, int64_t rows,
             int64_t inner, int64_t first_outer, int64_t first_inner, int64_t columns) {
  const uint32_t threshold = uint32_t(probability * 0x1p32);
  const T factor = T(1 / (1 - probability));
  parallel_for(0, rows, 8, [=](int64_t first, int64_t last) {
    vectorized([=]() __attribute__((always_inline)) {
      for (int64_t row = first; row < last; ++row)
        drop_row(input + row * columns, output + row * columns, key,
                 uint64_t(first_outer + row / inner), uint32_t(first_inner + row % inner),
                 threshold, factor, columns);
    });
  });
}

template void dropout(const float*, float*, RandomKey, double, int64_t, int64_t, int64_t, int64_t,
                      int64_t);
template void dropout(const double*, double*, RandomKey, double, int64_t, int64_t, int64_t, int64_t,
                      int64_t);

}  // namespace phalanx::kernels
