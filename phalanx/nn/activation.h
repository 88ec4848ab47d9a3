#pragma once

#include "phalanx/autograd/op.h"

namespace phalanx {

/// gelu(input + bias), tanh form (Hendrycks and Gimpel 2016; "gelu_new" at Hugging Face), in one
/// pass each way. bias [columns].
at::Tensor bias_gelu(const at::Tensor& input, const Parameter& bias);

}  // namespace phalanx
