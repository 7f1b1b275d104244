#include "runtime/training_model.h"

#include <utility>

#include "core/status.h"
#include "kernels/elementwise.h"
#include "kernels/experts.h"
#include "runtime/model/expert_names.h"

namespace fathom {

MeshSizes MeshOf(const ParallelConfig& parallel) {
  return {.pipeline = static_cast<int>(parallel.pipeline),
          .data = static_cast<int>(parallel.data),
          .context = 1,
          .tensor = static_cast<int>(parallel.tensor)};
}

ExpertSizes ExpertSizesOf(const ParallelConfig& parallel) {
  return {.expert = static_cast<int>(parallel.expert), .over_tensor = parallel.expert_tensor};
}

BatchShare ShareOf(const Job& job, const MeshCoordinates& coordinates) {
  return {.global_batch = job.train.global_batch,
          .micro_batch = job.train.micro_batch,
          .data_size = job.parallel.data,
          .data_rank = coordinates.data};
}

absl::Status CheckLayoutOf(const Job& job) {
  const MeshSizes sizes = MeshOf(job.parallel);
  const bool experts = job.model.plan.has_experts();
  if (job.parallel.tensor > job.model.kv_heads) {
    return absl::InvalidArgumentError(
        absl::StrCat("parallel.tensor is ", job.parallel.tensor,
                     ", but it must be at most model.kv_heads, which is ", job.model.kv_heads,
                     ": ranks that share a key/value head are not built"));
  }
  return CheckLayout(sizes, {.heads = job.model.heads,
                             .kv_heads = job.model.kv_heads,
                             .ffn = job.model.plan.has_dense_ffn() ? job.model.ffn : 0,
                             .experts = experts ? job.model.experts : 0,
                             .expert_ffn = job.model.expert_ffn,
                             .shared_ffn = job.model.shared * job.model.expert_ffn,
                             .layers = static_cast<int64_t>(job.model.plan.layers.size()),
                             .sequence_length = job.train.sequence_length,
                             .sequence_parallel = job.parallel.sequence,
                             .global_batch = job.train.global_batch,
                             .micro_batch = job.train.micro_batch,
                             .lanes = job.parallel.lanes,
                             .chunks = job.parallel.virtual_stages,
                             .expert = job.parallel.expert,
                             .experts_over_tensor = job.parallel.expert_tensor});
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
                               .experts_over_tensor = job.parallel.expert_tensor,
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
                              parameters.layout(), parameters.gradients(), groups, device));
  FATHOM_ASSIGN_OR_RETURN(training->optimizer_,
                          Optimizer::Create(job.optimizer, {.shard_state = shard}, parameters,
                                            groups, device, training->stream()));
  const double sequences = static_cast<double>(job.train.global_batch);
  const double tokens = sequences * static_cast<double>(job.train.sequence_length);
  FATHOM_ASSIGN_OR_RETURN(
      training->runner_,
      StepRunner::Create({.schedule = job.parallel.schedule,
                          .micro_batches = ShareOf(job, groups.coordinates()).micro_batches(),
                          .lanes = static_cast<int>(job.parallel.lanes),
                          .auxiliary_weight = job.model.routing_coefficient / tokens,
                          .balance_weight = job.model.balance_coefficient / sequences},
                         *training->model_, groups));
  if (job.model.plan.has_experts()) {
    const Shape shape{2, static_cast<int64_t>(job.model.plan.layers.size())};
    FATHOM_ASSIGN_OR_RETURN(training->expert_loads_buffer_,
                            Buffer::Allocate(device, shape.elements() * sizeof(double)));
    training->expert_loads_ = training->expert_loads_buffer_.View(0, DType::kFloat64, shape);
    for (const std::unique_ptr<Stage>& stage : training->model_->stages()) {
      for (int64_t layer = stage->layers().begin; layer < stage->layers().end; ++layer) {
        if (!job.model.plan.layers[layer].spec.experts) continue;
        const Parameter* bias = parameters.Find(ExpertBiasName(layer));
        training->expert_counts_.push_back({layer, bias->gradient});
      }
    }
  }
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
  FATHOM_RETURN_IF_ERROR(reducer_->Finish(stream()));
  return expert_loads_.absent() ? absl::OkStatus() : ShareExpertLoads();
}

absl::Status TrainingModel::ShareExpertLoads() {
  Launch(stream(), Fill{.value = 0, .y = expert_loads_});
  const int64_t layers = expert_loads_.dim(1);
  const Tensor flat = expert_loads_.Reshape({2 * layers});
  for (const auto& [layer, counts] : expert_counts_) {
    Launch(stream(), ExpertLoad{.counts = counts,
                                .violation = flat.Rows(layer, layer + 1),
                                .entropy = flat.Rows(layers + layer, layers + layer + 1)});
  }
  return groups_.pipeline().AllReduce(expert_loads_, ReduceOp::kSum, stream()).Wait(stream());
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
    if (bucket.role != UnitRole::kVectors && bucket.role != UnitRole::kCounts) continue;
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
