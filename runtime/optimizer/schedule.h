#pragma once

#include <cstdint>

#include "core/job.h"

namespace fathom {

// The learning rate of step `step` of `steps`, 1 to `steps`.
//
// Warm-up: peak * step / W up to step W = max(1, round(warmup_fraction * steps)); it wins over what
// follows. Then
//   COSINE:               from peak down to final_fraction * peak, which step `steps` has exactly
//   WARMUP_STABLE_DECAY:  peak, and over the last decay_fraction of all steps linearly down to
//                         final_fraction * peak
double LearningRate(const ScheduleConfig& config, double peak, int64_t step, int64_t steps);

}  // namespace fathom
