#pragma once

#include <cstdint>

namespace phalanx {

/// Linear warm-up, then a constant rate or half a cosine (Loshchilov and Hutter 2017) down to
/// `minimum`.
struct LearningRateSchedule {
  enum class Kind : uint8_t { constant, cosine } kind = Kind::cosine;
  double peak = 3e-4;
  double minimum = 0;        ///< reached at decay_steps, kept after; cosine only
  int64_t warmup_steps = 0;  ///< updates until the peak
  int64_t decay_steps = 1;   ///< updates until the minimum, warm-up included; cosine only
};

/// The rate of the update after `updates` updates; the first, with 0, is peak / warmup_steps. A
/// pure function: resuming needs no state.
double learning_rate(const LearningRateSchedule& schedule, int64_t updates);

}  // namespace phalanx
