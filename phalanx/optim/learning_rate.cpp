#include "phalanx/optim/learning_rate.h"

#include <cmath>
#include <numbers>

namespace phalanx {

double learning_rate(const LearningRateSchedule& schedule, int64_t updates) {
  if (updates < schedule.warmup_steps)
    return schedule.peak * double(updates + 1) / double(schedule.warmup_steps);
  if (schedule.kind == LearningRateSchedule::Kind::constant) return schedule.peak;
  if (updates >= schedule.decay_steps) return schedule.minimum;
  const double progress = double(updates - schedule.warmup_steps) /
                          double(schedule.decay_steps - schedule.warmup_steps);
  return schedule.minimum +
         (schedule.peak - schedule.minimum) * 0.5 * (1 + std::cos(std::numbers::pi * progress));
}

}  // namespace phalanx
