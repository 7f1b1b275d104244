#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "core/device.h"
#include "core/job.h"
#include "runtime/training_model.h"

namespace fathom {

// What one rank of a job holds in memory, in bytes, by purpose.
struct MemoryPlan {
  int64_t weights = 0;
  int64_t gradients = 0;    // and what they travel in
  int64_t optimizer = 0;    // momenta, moments
  int64_t activations = 0;  // the arena's peak: activations kept for backward, and scratch
  // In host memory: the copy that a save in the background writes from. 0 without such saves.
  int64_t snapshot = 0;
  Cost micro_batch;  // what forward and backward of one micro-batch cost

  // Of device memory.
  int64_t total() const { return weights + gradients + optimizer + activations; }
};

// Found by running one training step's code (all micro-batches, an update, a validation batch) as
// `rank` of the job's layout on the dry device, so that it cannot differ from what `train` does.
absl::StatusOr<MemoryPlan> PlanMemory(const Job& job, int rank = 0);
// Of the pipeline stage that holds the most. Ranks of one stage hold the same, but for what cannot
// be split evenly.
absl::StatusOr<MemoryPlan> PlanLargestMemory(const Job& job);

// What a run holds in device memory now; snapshot and micro_batch are unused. `activations` is the
// peak so far: after a first step it is the run's.
MemoryPlan MeasureMemory(TrainingModel& training);

}  // namespace fathom
