#include "phalanx/optim/learning_rate.h"

#include <cmath>
#include <numbers>

namespace phalanx {

double learning_rate(const LrConfig& lr, int64_t updates) {
  if (updates < lr.warmup_steps) return lr.peak * double(updates + 1) / double(lr.warmup_steps);
  if (lr.schedule == LrScheduleKind::constant) return lr.peak;
  if (updates >= lr.decay_steps) return lr.minimum;
  const double progress =
      double(updates - lr.warmup_steps) / double(lr.decay_steps - lr.warmup_steps);
  return lr.minimum + (lr.peak - lr.minimum) * 0.5 * (1 + std::cos(std::numbers::pi * progress));
}

}  // namespace phalanx
