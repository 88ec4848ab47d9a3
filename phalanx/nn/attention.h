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

}  // namespace phalanx
