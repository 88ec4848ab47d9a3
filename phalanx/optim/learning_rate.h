#pragma once

#include "phalanx/config/config.h"

namespace phalanx {

/// The rate of the update after `updates` updates: linear warm-up from peak / warmup_steps, then a
/// constant rate or half a cosine (Loshchilov and Hutter 2017) down to `minimum`, which is reached
/// at decay_steps (warm-up included) and kept after. `lr` is of a resolved config. A pure function:
/// resuming needs no state.
double learning_rate(const LrConfig& lr, int64_t updates);

}  // namespace phalanx
