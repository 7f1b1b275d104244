#include "runtime/optimizer/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace fathom {

double LearningRate(const ScheduleConfig& config, double peak, int64_t step, int64_t steps) {
  const int64_t warmup =
      std::max<int64_t>(1, std::llround(config.warmup_fraction * static_cast<double>(steps)));
  if (step <= warmup) return peak * static_cast<double>(step) / static_cast<double>(warmup);
  const double floor = config.final_fraction;
  if (config.kind == ScheduleKind::kCosine) {
    const double progress =
        static_cast<double>(step - warmup) / static_cast<double>(steps - warmup);
    return peak * (floor + (1 - floor) * 0.5 * (1 + std::cos(std::numbers::pi * progress)));
  }
  const int64_t decay = std::clamp<int64_t>(
      std::llround(config.decay_fraction * static_cast<double>(steps)), 1, steps - warmup);
  const int64_t stable_end = steps - decay;
  if (step <= stable_end) return peak;
  const double progress = static_cast<double>(step - stable_end) / static_cast<double>(decay);
  return peak * (1 - (1 - floor) * progress);
}

}  // namespace fathom
