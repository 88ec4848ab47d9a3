#pragma once

#include "phalanx/autograd/op.h"

namespace phalanx {

/// How a weight is stored: [in, out] as GPT-2 does, or [out, in] as most others do.
enum class WeightLayout : uint8_t { in_out, out_in };

/// y [..., out] = x [..., in] W + bias. `bias` may be null.
at::Tensor linear(const at::Tensor& input, const Parameter& weight, const Parameter& bias = nullptr,
                  WeightLayout layout = WeightLayout::in_out);

/// residual + branch + bias [columns], all of one shape [..., columns].
at::Tensor add_bias(const at::Tensor& residual, const at::Tensor& branch, const Parameter& bias);

/// Adds `gradient` to the parameter's slot, or puts it there: for gradients that are small or
/// computed along with something else.
void write_gradient(const Parameter& parameter, at::Tensor gradient);

}  // namespace phalanx
