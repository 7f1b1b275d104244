#include "runtime/memory_plan.h"

#include <vector>

#include "core/status.h"
#include "runtime/run_state.h"
#include "runtime/shard_pieces.h"
#include "runtime/training_model.h"

namespace fathom {
namespace {

// Of what this rank saves.
int64_t PlanSnapshot(const CheckpointConfig& config, TrainingModel& training, RankGroups& groups) {
  if (!config.async || config.every == 0) return 0;
  std::vector<ShardPiece> pieces;
  AppendShardPieces(TensorKind::kWeight, WeightPieces(training.parameters(), groups), &pieces);
  AppendShardPieces(TensorKind::kOptimizer, OptimizerPieces(training.optimizer(), groups), &pieces);
  int64_t bytes = 0;
  for (const ShardPiece& piece : pieces) bytes += SnapshotBytes(piece);
  return bytes;
}

}  // namespace

MemoryPlan MeasureMemory(TrainingModel& training) {
  return {.weights = training.parameters().weight_bytes(),
          .gradients = training.gradient_bytes(),
          .optimizer = training.optimizer().bytes(),
          .activations = training.model().peak_arena_bytes(),
          .snapshot = 0,
          .micro_batch = {}};
}

absl::StatusOr<MemoryPlan> PlanMemory(const Job& job, int rank) {
  const std::unique_ptr<Device> device = NewDryDevice();
  FATHOM_ASSIGN_OR_RETURN(const std::unique_ptr<RankGroups> groups,
                          RankGroups::Dry(MeshOf(job.parallel), rank, ExpertSizesOf(job.parallel)));
  FATHOM_ASSIGN_OR_RETURN(const std::unique_ptr<TrainingModel> training,
                          TrainingModel::Create(job, *groups, *device));
  Stream& stream = training->stream();
  FATHOM_ASSIGN_OR_RETURN(const Buffer totals_buffer,
                          Buffer::Allocate(*device, kStepTotals * sizeof(double)));
  const Tensor totals = totals_buffer.View(0, DType::kFloat64, {kStepTotals});
  const BatchShare share = ShareOf(job, groups->coordinates());
  const HostBatch batch = HostBatch::WholeSequences(share.micro_batch, job.train.sequence_length);
  const std::vector<HostBatch> micro_batches(share.micro_batches(), batch);

  stream.ledger().Clear();
  FATHOM_RETURN_IF_ERROR(training->runner().Train(micro_batches, 1, totals, {}));
  const Cost step = stream.ledger().total();
  std::vector<double> losses;
  StepRunner::RowCounts counts = training->runner().NoRows();
  FATHOM_RETURN_IF_ERROR(training->runner().Evaluate(batch, Routing::kCausal, &losses, &counts));
  FATHOM_RETURN_IF_ERROR(training->Update(/*learning_rate=*/0, totals));
  MemoryPlan plan = MeasureMemory(*training);
  plan.snapshot = PlanSnapshot(job.checkpoint, *training, *groups);
  const double count = static_cast<double>(share.micro_batches());
  plan.micro_batch = {.matrix_flops = step.matrix_flops / count,
                      .vector_flops = step.vector_flops / count,
                      .bytes = step.bytes / count};
  return plan;
}

absl::StatusOr<MemoryPlan> PlanLargestMemory(const Job& job) {
  FATHOM_RETURN_IF_ERROR(CheckLayoutOf(job));
  MemoryPlan largest;
  for (int64_t stage = 0; stage < job.parallel.pipeline; ++stage) {
    const int rank = static_cast<int>(stage * job.parallel.data * job.parallel.tensor);
    FATHOM_ASSIGN_OR_RETURN(const MemoryPlan plan, PlanMemory(job, rank));
    if (plan.total() > largest.total()) largest = plan;
  }
  return largest;
}

}  // namespace fathom
