#pragma once

#include <cstdint>

namespace phalanx::kernels {

/// Softmax and negative log-likelihood of each row of logits [rows, classes], and their gradient in
/// the memory of the logits:
///   losses[row] = log(sum(exp(logits[row]))) - logits[row][target]
///   logits[row] = scale * (softmax(logits[row]) - one_hot(target))    if `write_gradient`
/// Rows with target `ignored` have loss 0 and gradient 0. Other targets must be in [0, classes).
/// float and double; sums in double.
template <class T>
void cross_entropy(T* logits, const int64_t* targets, int64_t ignored, double scale,
                   bool write_gradient, double* losses, int64_t rows, int64_t classes);

}  // namespace phalanx::kernels
