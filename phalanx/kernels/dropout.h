#pragma once

#include <cstdint>

#include "phalanx/base/random.h"

namespace phalanx::kernels {

/// output = input where kept, divided by 1 - probability, and 0 elsewhere. The mask of an element
/// is a function of the key, the row's coordinates and its column: nothing is stored, and any cut
/// of the rows over ranks draws the same mask. Row r has coordinates (first_outer + r / inner,
/// first_inner + r % inner). float and double; may run in place.
template <class T>
void dropout(const T* input, T* output, RandomKey key, double probability, int64_t rows,
             int64_t inner, int64_t first_outer, int64_t first_inner, int64_t columns);

}  // namespace phalanx::kernels
