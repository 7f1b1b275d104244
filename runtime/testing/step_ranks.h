#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "core/cpu_device.h"
#include "core/job.h"
#include "core/status.h"
#include "parallel/in_process_communicator.h"
#include "parallel/rank_groups.h"
#include "runtime/training_model.h"

namespace fathom {

// One rank of a job's layout, ready for training steps outside of a Trainer: without files, and
// with tokens drawn from their places in the batch.
struct StepRank {
  RankGroups& groups;
  TrainingModel& training;
  CommunicationLog& log;  // of this rank; empty at first
  std::vector<HostBatch> micro_batches;
  double label_weight;
  Tensor totals;  // [kStepTotals] float64, zero at first

  absl::Status Train(const PassHooks& hooks = {}) {
    return training.runner().Train(micro_batches, label_weight, totals, hooks);
  }
  // A whole step.
  absl::Status TrainAndUpdate() {
    FATHOM_RETURN_IF_ERROR(training.ComputeGradients(micro_batches, label_weight, totals, {}));
    return training.Update(/*learning_rate=*/1e-3, totals);
  }
};

using StepBody = std::function<absl::Status(StepRank&)>;

inline std::vector<HostBatch> MakeMicroBatches(const Job& job, const RankGroups& groups) {
  const BatchShare share = ShareOf(job, groups.coordinates());
  std::vector<HostBatch> batches;
  for (int64_t m = 0; m < share.micro_batches(); ++m) {
    HostBatch batch = HostBatch::WholeSequences(share.micro_batch, job.train.sequence_length);
    uint64_t state = share.MicroBatchInStep(m) + 1;
    const auto draw = [&] {
      state = state * 6364136223846793005u + 1442695040888963407u;
      return static_cast<int32_t>((state >> 33) % job.model.vocabulary);
    };
    for (int32_t& token : batch.tokens) token = draw();
    for (int32_t& label : batch.labels) label = draw();
    batches.push_back(std::move(batch));
  }
  return batches;
}

inline absl::Status RunStepRank(const Job& job, RankGroups& groups, Device& device,
                                CommunicationLog& log, const StepBody& body) {
  FATHOM_ASSIGN_OR_RETURN(const std::unique_ptr<TrainingModel> training,
                          TrainingModel::Create(job, groups, device));
  if (device.kind() != DeviceKind::kDry) {
    FATHOM_RETURN_IF_ERROR(
        InitializeParameters(training->parameters(), job.train.seed, training->stream()));
  }
  std::vector<double> totals(kStepTotals, 0);
  const double labels = static_cast<double>(job.train.global_batch * job.train.sequence_length);
  StepRank rank{.groups = groups,
                .training = *training,
                .log = log,
                .micro_batches = MakeMicroBatches(job, groups),
                .label_weight = 1 / labels,
                .totals = Tensor(totals.data(), DType::kFloat64, {kStepTotals})};
  log.Clear();
  return body(rank);
}

// Calls `body` for every rank of the job's layout, each on a thread of its own with one CPU thread.
// The status is that of a rank that failed first.
inline absl::Status RunStepRanks(const Job& job, const InProcessOptions& options,
                                 const StepBody& body) {
  auto world = NewInProcessWorld(static_cast<int>(job.parallel.ranks()), options);
  std::mutex mutex;
  absl::Status first;
  const auto run_rank = [&](Communicator& communicator) {
    const auto log = std::make_shared<CommunicationLog>();
    communicator.set_log(log);
    CpuDevice device(1);
    const auto run = [&]() -> absl::Status {
      FATHOM_ASSIGN_OR_RETURN(
          const std::unique_ptr<RankGroups> groups,
          RankGroups::Create(communicator, MeshOf(job.parallel), ExpertSizesOf(job.parallel)));
      const absl::Status status = RunStepRank(job, *groups, device, *log, body);
      if (!status.ok()) communicator.Abort(status);
      return status;
    };
    const absl::Status status = run();
    const std::lock_guard lock(mutex);
    first.Update(status);
  };
  std::vector<std::thread> threads;
  for (const auto& rank : world) threads.emplace_back(run_rank, std::ref(*rank));
  for (std::thread& thread : threads) thread.join();
  return first;
}

// Calls `body` for one rank, on a device that executes nothing.
inline absl::Status RunDryStepRank(const Job& job, int rank, const StepBody& body) {
  const std::unique_ptr<Device> device = NewDryDevice();
  FATHOM_ASSIGN_OR_RETURN(const std::unique_ptr<RankGroups> groups,
                          RankGroups::Dry(MeshOf(job.parallel), rank, ExpertSizesOf(job.parallel)));
  const auto log = std::make_shared<CommunicationLog>();
  groups->set_log(log);
  return RunStepRank(job, *groups, *device, *log, body);
}

}  // namespace fathom
