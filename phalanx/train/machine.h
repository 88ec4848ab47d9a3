#pragma once

#include <c10/core/ScalarType.h>

namespace phalanx {

/// Floating-point operations per second of this rank's threads in large matrix products, measured
/// in about 0.2 s. All ranks of a host measure at the same time, since they share its cores.
double matrix_product_flops(at::ScalarType type);

}  // namespace phalanx
