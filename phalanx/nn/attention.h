#pragma once

#include <string_view>

#include "phalanx/autograd/block.h"

namespace phalanx {

/// Causal multi-head self-attention (Vaswani et al. 2017) from packed queries, keys and values
/// [batch, time, 3 * hidden] to [batch, time, hidden], scaled by 1 / sqrt(head size). Without
/// dropout: flash attention (Dao et al. 2022); with dropout on the probabilities: all of them are
/// kept for backward, masks keyed like dropout()'s.
at::Tensor causal_attention(const at::Tensor& packed, int64_t heads, double dropout_probability,
                            std::string_view site, const Context& context);

/// Attention of new positions over themselves and the `length` before them, without gradients.
/// `packed` [batch, time, 3 * hidden] is written to places [length, length + time) of `cache`
/// [batch, capacity, 3 * hidden]. time > 1 only with length 0.
at::Tensor cached_attention(const at::Tensor& packed, const at::Tensor& cache, int64_t length,
                            int64_t heads);

}  // namespace phalanx
