#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "core/job.h"
#include "parallel/data/gradient_reducer.h"
#include "parallel/mesh.h"
#include "parallel/rank_groups.h"
#include "runtime/data/batch_share.h"
#include "runtime/language_model.h"
#include "runtime/optimizer/optimizer.h"
#include "runtime/step_runner.h"

namespace fathom {

// The ranks along each axis of a job's layout.
MeshSizes MeshOf(const ParallelConfig& parallel);
// How the job's experts lie on them.
ExpertSizes ExpertSizesOf(const ParallelConfig& parallel);
// Which sequences of a step the rank at `coordinates` trains on.
BatchShare ShareOf(const Job& job, const MeshCoordinates& coordinates);
// InvalidArgument, with all factors, for a layout that the job's model and batch cannot be cut to.
absl::Status CheckLayoutOf(const Job& job);

// What one rank needs to train a job's model: its share of the model, the sums of gradients over
// the ranks, its share of the optimizer. It is the same code on every device, the dry one included.
class TrainingModel {
 public:
  // `groups` has the job's mesh and experts; it and `device` outlive the object.
  static absl::StatusOr<std::unique_ptr<TrainingModel>> Create(const Job& job, RankGroups& groups,
                                                               Device& device);

  // Sets the gradients to those of a step: of this rank's `micro_batches`, summed over all ranks.
  // Arguments as in StepRunner::Train.
  absl::Status ComputeGradients(const std::vector<HostBatch>& micro_batches, double label_weight,
                                const Tensor& totals, PassHooks hooks);
  // Of the layers with experts in the last step, after ComputeGradients: [2, layers] float64, the
  // violation and the entropy of kernels/experts.h' ExpertLoad; 0 for other layers. Absent for a
  // model without experts.
  const Tensor& expert_loads() const { return expert_loads_; }
  // Updates the parameters; `totals` as in Optimizer::Step.
  absl::Status Update(double learning_rate, const Tensor& totals);

  LanguageModel& model() { return *model_; }
  Optimizer& optimizer() { return *optimizer_; }
  StepRunner& runner() { return *runner_; }
  ParameterTable& parameters() { return model_->parameters(); }
  Stream& stream() { return model_->stream(); }
  // Gradients, and what they travel in.
  int64_t gradient_bytes() const;

 private:
  explicit TrainingModel(RankGroups& groups) : groups_(groups) {}

  // Gradients that tensor ranks have in common, or each a part of.
  absl::Status SumOverTensorRanks();
  // Sets expert_loads_ from the counts of all stages.
  absl::Status ShareExpertLoads();

  RankGroups& groups_;
  std::unique_ptr<LanguageModel> model_;
  std::unique_ptr<GradientReducer> reducer_;
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<StepRunner> runner_;
  // Of this rank's layers with experts: the layer, and the rows of each expert [E] stat.
  std::vector<std::pair<int64_t, Tensor>> expert_counts_;
  Buffer expert_loads_buffer_;
  Tensor expert_loads_;
};

}  // namespace fathom
