#pragma once

#include <string_view>

#include "phalanx/autograd/block.h"
#include "phalanx/base/random.h"

namespace phalanx {

/// The key of the masks of one place in the model ("blocks.3.mlp") in this step.
RandomKey dropout_key(std::string_view site, const Context& context);

/// Dropout on [batch, time, columns] with masks keyed by (seed, step, site, global sample,
/// position, channel): the same in every layout, and nothing is stored for backward. The identity
/// when `probability` is 0 or the context is not training.
at::Tensor dropout(const at::Tensor& input, double probability, std::string_view site,
                   const Context& context);

}  // namespace phalanx
