#pragma once

#include <cstdint>

#include "core/check.h"

namespace fathom {

// Which sequences of a global batch a data rank trains on. Ranks of one data coordinate, whatever
// their tensor, context and pipeline ones, have the same share; the shares of all data ranks are
// the global batch, each sequence once. Rank r of D has the r-th of D equal stretches, and goes
// through it micro-batch by micro-batch.
struct BatchShare {
  int64_t global_batch = 1;  // sequences per step; a multiple of data_size * micro_batch
  int64_t micro_batch = 1;   // sequences
  int64_t data_size = 1;     // D
  int64_t data_rank = 0;     // 0 <= r < D

  // Of this rank, per step.
  int64_t micro_batches() const { return global_batch / (data_size * micro_batch); }
  // The place of this rank's micro-batch m among those of all ranks in a step.
  int64_t MicroBatchInStep(int64_t m) const { return data_rank * micro_batches() + m; }
  // The first sequence, counted over the whole run, of micro-batch m of step `step` >= 1; the
  // micro-batch is this one and the next micro_batch - 1.
  int64_t FirstSequence(int64_t step, int64_t m) const {
    FATHOM_CHECK(step >= 1 && 0 <= m && m < micro_batches());
    return (step - 1) * global_batch + MicroBatchInStep(m) * micro_batch;
  }
};

}  // namespace fathom
