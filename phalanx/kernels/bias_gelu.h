#pragma once

#include <cstdint>

namespace phalanx::kernels {

/// output = gelu(input + bias), the tanh form of Hendrycks and Gimpel (2016), "gelu_new" at Hugging
/// Face. Row-major [rows, columns]; bias [columns]. float and double.
template <class T>
void bias_gelu(const T* input, const T* bias, T* output, int64_t rows, int64_t columns);

/// input_gradient = output_gradient gelu'(input + bias); bias_gradient [columns] is its sum over
/// rows. Overwrites both.
template <class T>
void bias_gelu_backward(const T* output_gradient, const T* input, const T* bias, T* input_gradient,
                        T* bias_gradient, int64_t rows, int64_t columns);

}  // namespace phalanx::kernels
