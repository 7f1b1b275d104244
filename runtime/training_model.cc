#include "runtime/training_model.h"

#include <utility>

#include "core/status.h"
#include "kernels/elementwise.h"

namespace fathom {

MeshSizes MeshOf(const ParallelConfig& parallel) {
  return {.pipeline = static_cast<int>(parallel.pipeline),
          .data = static_cast<int>(parallel.data),
          .context = 1,
          .tensor = static_cast<int>(parallel.tensor)};
}

BatchShare ShareOf(const Job& job, const MeshCoordinates& coordinates) {
  return {.global_batch = job.train.global_batch,
          .micro_batch = job.train.micro_batch,
          .data_size = job.parallel.data,
          .data_rank = coordinates.data};
}

absl::Status CheckLayoutOf(const Job& job) {
  const MeshSizes sizes = MeshOf(job.parallel);
  if (job.parallel.tensor > job.model.kv_heads) {
    return absl::InvalidArgumentError(
        absl::StrCat("parallel.tensor is ", job.parallel.tensor,
                     ", but it must be at most model.kv_heads, which is ", job.model.kv_heads,
                     ": ranks that share a key/value head are not built"));
  }
  return CheckLayout(sizes, {.heads = job.model.heads,
                             .kv_heads = job.model.kv_heads,
                             .ffn = job.model.ffn,
                             .layers = static_cast<int64_t>(job.model.plan.layers.size()),
                             .sequence_length = job.train.sequence_length,
                             .sequence_parallel = job.parallel.sequence,
                             .global_batch = job.train.global_batch,
                             .micro_batch = job.train.micro_batch,
                             .lanes = job.parallel.lanes,
                             .chunks = job.parallel.virtual_stages});
}

absl::StatusOr<std::unique_ptr<TrainingModel>> TrainingModel::Create(const Job& job,
                                                                     RankGroups& groups,
                                                                     Device& device) {
  FATHOM_RETURN_IF_ERROR(CheckLayoutOf(job));
  std::unique_ptr<TrainingModel> training(new TrainingModel(groups));
  LanguageModelOptions options{.dtype = ComputeDType(job.train.precision),
                               .length = job.train.sequence_length,
                               .with_gradients = true,
                               .sequence_parallel = job.parallel.sequence,
                               .chunks = static_cast<int>(job.parallel.virtual_stages)};
  options.layout.muon = job.optimizer.muon;
  options.layout.newton_schulz_steps = job.optimizer.newton_schulz_steps;
  options.layout.bucket_elements = job.parallel.bucket_elements;
  FATHOM_ASSIGN_OR_RETURN(training->model_,
                          LanguageModel::Create(job.model, options, groups, device));
  const ParameterTable& parameters = training->parameters();
  const bool shard = job.parallel.zero > 0;
  FATHOM_ASSIGN_OR_RETURN(
      training->reducer_,
      GradientReducer::Create({.to_owners = shard, .bfloat16 = job.parallel.gradients_in_bfloat16},
                              parameters.layout(), parameters.gradients(), groups.data(), device));
  FATHOM_ASSIGN_OR_RETURN(training->optimizer_,
                          Optimizer::Create(job.optimizer, {.shard_state = shard}, parameters,
                                            groups, device, training->stream()));
  const double tokens = static_cast<double>(job.train.global_batch * job.train.sequence_length);
  FATHOM_ASSIGN_OR_RETURN(
      training->runner_,
      StepRunner::Create({.schedule = job.parallel.schedule,
                          .micro_batches = ShareOf(job, groups.coordinates()).micro_batches(),
                          .lanes = static_cast<int>(job.parallel.lanes),
                          .auxiliary_weight = job.model.routing_coefficient / tokens},
                         *training->model_, groups));
  return training;
}

absl::Status TrainingModel::ComputeGradients(const std::vector<HostBatch>& micro_batches,
                                             double label_weight, const Tensor& totals,
                                             PassHooks hooks) {
  Launch(stream(), Fill{.value = 0, .y = parameters().gradients()});
  reducer_->Begin();
  hooks.gradients_done = [this](size_t first_parameter) {
    reducer_->Ready(first_parameter, stream());
  };
  FATHOM_RETURN_IF_ERROR(runner_->Train(micro_batches, label_weight, totals, hooks));
  FATHOM_RETURN_IF_ERROR(SumOverTensorRanks());
  return reducer_->Finish(stream());
}

absl::Status TrainingModel::SumOverTensorRanks() {
  if (groups_.tensor().size() == 1) return absl::OkStatus();
  // One sum serves both kinds when only one rank's copy of what all have goes into it.
  if (groups_.tensor().rank() != 0) {
    for (const Parameter& parameter : parameters().all()) {
      if (parameter.spec.gradient != GradientOverRanks::kSame) continue;
      Launch(stream(), Fill{.value = 0, .y = parameter.gradient});
    }
  }
  for (const ParameterBucket& bucket : parameters().layout().buckets) {
    if (bucket.role != UnitRole::kVectors) continue;
    const Tensor vectors =
        parameters().gradients().Rows(bucket.elements.begin, bucket.elements.end);
    FATHOM_RETURN_IF_ERROR(
        groups_.tensor().AllReduce(vectors, ReduceOp::kSum, stream()).Wait(stream()));
  }
  return absl::OkStatus();
}

absl::Status TrainingModel::Update(double learning_rate, const Tensor& totals) {
  return optimizer_->Step(stream(), model_->arena(), learning_rate, totals);
}

int64_t TrainingModel::gradient_bytes() const {
  return model_->parameters().gradient_bytes() + reducer_->bytes();
}

}  // namespace fathom
