#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "phalanx/comm/communicator.h"

namespace phalanx {

/// True for the element types that reduce() knows: those of `reducible`, LibTorch's names.
bool can_reduce(at::ScalarType dtype);
constexpr const char* reducible = "Double, Float, BFloat16, Half, Long, Int, Short or Byte";

/// out[i] = inputs[0][i] + inputs[1][i] + ... in this order, or out[i] + (that sum) with
/// `accumulate`; max and min likewise. 16-bit floats are added in float32 and rounded once,
/// integers wrap. `out` may be one of the inputs. One function for every transport, so that all of
/// them give the same bits.
void reduce(void* out, const void* const* inputs, int input_count, int64_t elements,
            at::ScalarType dtype, Op op, bool accumulate);

}  // namespace phalanx
