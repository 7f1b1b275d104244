#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/data/batch_share.h"
#include "runtime/data/sampler.h"
#include "runtime/model/micro_batch.h"

namespace fathom {

// What a rank trains on in one step.
struct StepBatches {
  std::vector<HostBatch> micro_batches;
  // Of the global batch, that is, of all ranks:
  int64_t counted_labels = 0;
  double pairs = 0;  // query-key pairs of causal attention within documents
};

// Fills the micro-batches of the next step on a thread of its own while a step runs, so that a step
// does not wait for a disk. Take is for one thread.
class Prefetcher {
 public:
  // Starts with step `first_step`. `sampler` must outlive the prefetcher; its sequences have
  // `sequence_length` tokens.
  Prefetcher(const Sampler& sampler, const BatchShare& share, int64_t sequence_length,
             int64_t first_step);
  ~Prefetcher();  // waits for the step that is being filled

  // This rank's batches of the next step: of `first_step` in the first call, of the
  // one after it in the second. Valid until the next call. An error of the sampler comes back from
  // the call whose step needs what could not be read, and from all later ones.
  absl::StatusOr<const StepBatches*> Take();

 private:
  // Two steps' batches: one is lent by Take while the other is filled.
  static constexpr int kSlots = 2;

  void Run();
  absl::Status Fill(int64_t step, StepBatches* batches) const;

  const Sampler& sampler_;
  const BatchShare share_;
  const int64_t first_step_;
  StepBatches slots_[kSlots];
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  int64_t filled_;       // the steps before this one are filled; slot step % kSlots
  int64_t taken_;        // the next step that Take gives; the slot of the one before it is lent
  absl::Status status_;  // of step filled_, once it is not OK
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace fathom
