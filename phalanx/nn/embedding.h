#pragma once

#include "phalanx/autograd/op.h"

namespace phalanx {

/// Rows of `tokens` [vocabulary, hidden] plus rows of `positions` [context, hidden], for indices
/// [batch, time] (int64) at positions first_position, first_position + 1, ... The gradient is added
/// in the order of the indices. Throws Error(data) for an index outside the vocabulary and
/// Error(usage) for a sequence longer than the table of positions.
at::Tensor embedding(const at::Tensor& indices, const Parameter& tokens, const Parameter& positions,
                     int64_t first_position = 0);

/// Throws Error(data) unless every element of `indices` is in [0, count) or is `besides`.
void check_indices(const at::Tensor& indices, int64_t count, std::string_view what,
                   int64_t besides = 0);

}  // namespace phalanx
