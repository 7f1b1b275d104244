#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "core/device.h"
#include "core/job.h"

namespace fathom {

// What one rank of a job holds in memory, in bytes, by purpose.
struct MemoryPlan {
  int64_t weights = 0;
  int64_t gradients = 0;
  int64_t optimizer = 0;    // momenta, moments
  int64_t activations = 0;  // the arena's peak: activations kept for backward, and scratch
  Cost micro_batch;         // what forward and backward of one micro-batch cost

  int64_t total() const { return weights + gradients + optimizer + activations; }
};

// Found by running one training step's code (a micro-batch, an update, a validation batch) on the
// dry device, so that it cannot differ from what `train` does.
absl::StatusOr<MemoryPlan> PlanMemory(const Job& job);

}  // namespace fathom
