#include "runtime/data/prefetcher.h"

#include "core/check.h"
#include "core/status.h"

namespace fathom {

Prefetcher::Prefetcher(const Sampler& sampler, const BatchShare& share, int64_t sequence_length,
                       int64_t first_step)
    : sampler_(sampler),
      share_(share),
      first_step_(first_step),
      filled_(first_step),
      taken_(first_step) {
  FATHOM_CHECK(first_step >= 1);
  for (StepBatches& slot : slots_) {
    slot.micro_batches.assign(share.micro_batches(),
                              HostBatch::WholeSequences(share.micro_batch, sequence_length));
  }
  thread_ = std::thread([this] { Run(); });
}

Prefetcher::~Prefetcher() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

absl::Status Prefetcher::Fill(int64_t step, StepBatches* batches) const {
  for (int64_t m = 0; m < share_.micro_batches(); ++m) {
    FATHOM_RETURN_IF_ERROR(
        sampler_.FillBatch(share_.FirstSequence(step, m), &batches->micro_batches[m]));
  }
  const int64_t first = (step - 1) * share_.global_batch;
  batches->counted_labels = sampler_.CountLabels(first, share_.global_batch);
  batches->pairs = sampler_.CountPairs(first, share_.global_batch);
  return absl::OkStatus();
}

void Prefetcher::Run() {
  for (int64_t step = first_step_;; ++step) {
    {
      // The slot's earlier step must have been given back, which taking the one after it does.
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stop_ || step - taken_ < kSlots - 1; });
      if (stop_) return;
    }
    const absl::Status status = Fill(step, &slots_[step % kSlots]);
    std::lock_guard lock(mutex_);
    status_ = status;
    if (status.ok()) filled_ = step + 1;
    changed_.notify_all();
    if (!status.ok()) return;
  }
}

absl::StatusOr<const StepBatches*> Prefetcher::Take() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return filled_ > taken_ || !status_.ok(); });
  if (filled_ <= taken_) return status_;
  const int64_t step = taken_++;
  changed_.notify_all();
  return &slots_[step % kSlots];
}

}  // namespace fathom
