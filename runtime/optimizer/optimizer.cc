#include "runtime/optimizer/optimizer.h"

#include <algorithm>
#include <utility>

#include "core/status.h"
#include "kernels/elementwise.h"
#include "kernels/optimizer.h"

namespace fathom {

Optimizer::Optimizer(const OptimizerConfig& config, const OptimizerSharing& sharing,
                     const ParameterTable& table, RankGroups& groups)
    : config_(config), sharing_(sharing), table_(table), groups_(groups) {}

bool Optimizer::UsesMuon(const Parameter& parameter) const {
  return config_.muon && parameter.spec.role == ParameterRole::kMatrix;
}

ElementRange Optimizer::Kept(const ParameterBucket& bucket) const {
  if (!sharing_.shard_state) return bucket.elements;
  return bucket.OwnedBy(groups_.replicas(bucket.of_expert).rank());
}

template <class Visit>
void Optimizer::VisitKept(Visit visit) const {
  const ParameterLayout& layout = table_.layout();
  for (size_t i = 0; i < table_.all().size(); ++i) {
    const Parameter& parameter = table_.all()[i];
    const int64_t begin = layout.offsets[i];
    const int64_t end = begin + parameter.master.elements();
    for (const ParameterBucket& bucket : layout.buckets) {
      if (bucket.role == UnitRole::kCounts) continue;
      const ElementRange kept = Kept(bucket);
      const ElementRange elements{std::max(begin, kept.begin), std::min(end, kept.end)};
      if (elements.size() > 0) visit(parameter, begin, elements);
    }
  }
}

absl::StatusOr<std::unique_ptr<Optimizer>> Optimizer::Create(const OptimizerConfig& config,
                                                             const OptimizerSharing& sharing,
                                                             const ParameterTable& table,
                                                             RankGroups& groups, Device& device,
                                                             Stream& stream) {
  std::unique_ptr<Optimizer> optimizer(new Optimizer(config, sharing, table, groups));
  int64_t state_elements = 0;
  optimizer->VisitKept([&](const Parameter& parameter, int64_t, const ElementRange& elements) {
    state_elements += (optimizer->UsesMuon(parameter) ? 1 : 2) * elements.size();
  });
  const DType dtype = table.gradients().dtype();
  FATHOM_ASSIGN_OR_RETURN(optimizer->state_buffer_,
                          Buffer::Allocate(device, state_elements * SizeOf(dtype)));
  FATHOM_ASSIGN_OR_RETURN(optimizer->scalars_,
                          Buffer::Allocate(device, kStepScalars * sizeof(double)));
  optimizer->step_ = optimizer->scalars_.View(0, DType::kFloat64, {kStepScalars});

  int64_t offset = 0;
  std::map<const Parameter*, Tensor> momenta;
  optimizer->VisitKept([&](const Parameter& parameter, int64_t begin,
                           const ElementRange& elements) {
    const auto add_state = [&](const char* suffix) {
      const Tensor tensor = optimizer->state_buffer_.View(offset, dtype, Shape{elements.size()});
      offset += tensor.bytes();
      optimizer->state_.push_back({absl::StrCat(parameter.spec.name, ".", suffix),
                                   &parameter,
                                   {elements.begin - begin, elements.end - begin},
                                   tensor});
      return tensor;
    };
    if (optimizer->UsesMuon(parameter)) {
      momenta[&parameter] = add_state("momentum");
    } else {
      const Tensor first = add_state("first");
      optimizer->adam_.push_back({&parameter, elements, first, add_state("second")});
    }
  });
  optimizer->muon_ = optimizer->MakeMuon(/*of_expert=*/false, momenta);
  optimizer->expert_muon_ = optimizer->MakeMuon(/*of_expert=*/true, momenta);
  Launch(stream,
         Fill{.value = 0, .y = optimizer->state_buffer_.View(0, dtype, Shape{state_elements})});
  Launch(stream, Fill{.value = 0, .y = optimizer->step_});
  return optimizer;
}

std::unique_ptr<Muon> Optimizer::MakeMuon(bool of_expert,
                                          const std::map<const Parameter*, Tensor>& momenta) const {
  std::vector<MuonMatrix> matrices;
  for (size_t i = 0; i < table_.all().size(); ++i) {
    const Parameter& parameter = table_.all()[i];
    if (!UsesMuon(parameter) || parameter.spec.of_expert != of_expert) continue;
    const auto momentum = momenta.find(&parameter);
    matrices.push_back({.shape = parameter.spec.shape,
                        .part = parameter.spec.part,
                        .owner = table_.layout().owners[i],
                        .weight = parameter.master,
                        .gradient = parameter.gradient,
                        .momentum = momentum == momenta.end() ? Tensor() : momentum->second});
  }
  return std::make_unique<Muon>(config_, std::move(matrices), groups_.replicas(of_expert).rank(),
                                groups_.parts(of_expert));
}

int64_t Optimizer::orthogonalized() const {
  return muon_->orthogonalized() + expert_muon_->orthogonalized();
}

void Optimizer::UpdateExpertBiases(Stream& stream) const {
  for (const Parameter& parameter : table_.all()) {
    if (parameter.spec.role != ParameterRole::kExpertBias) continue;
    Launch(stream, UpdateExpertBias{.counts = parameter.gradient,
                                    .rate = parameter.spec.bias_rate,
                                    .step = step_,
                                    .bias = parameter.master});
  }
}

void Optimizer::AddSquaredNorm(Stream& stream, const Tensor& sum) const {
  for (const ParameterBucket& bucket : table_.layout().buckets) {
    if (bucket.role == UnitRole::kCounts) continue;
    if (bucket.role == UnitRole::kVectors && groups_.tensor().rank() != 0) continue;
    const ElementRange owned = bucket.OwnedBy(groups_.replicas(bucket.of_expert).rank());
    if (owned.size() == 0) continue;
    Launch(stream, SumOfSquares{.x = table_.gradients().Rows(owned.begin, owned.end), .sum = sum});
  }
}

absl::Status Optimizer::Step(Stream& stream, Arena& arena, double learning_rate,
                             const Tensor& totals) {
  const int64_t last = totals.elements() - 1;
  const Tensor squared_norm = totals.Rows(last, last + 1);
  Launch(stream, Fill{.value = 0, .y = squared_norm});
  AddSquaredNorm(stream, squared_norm);
  FATHOM_RETURN_IF_ERROR(groups_.world().AllReduce(totals, ReduceOp::kSum, stream).Wait(stream));
  learning_rate_ = learning_rate;
  stream.CopyToDevice(&learning_rate_, step_.Rows(kLearningRate, kLearningRate + 1));
  Launch(stream, PrepareStep{.squared_norm = squared_norm,
                             .loss = totals.Rows(0, last),
                             .clip = config_.clip,
                             .step = step_});
  for (const AdamPiece& piece : adam_) {
    Launch(stream,
           AdamW{.gradient = table_.gradients().Rows(piece.elements.begin, piece.elements.end),
                 .step = step_,
                 .decay = piece.parameter->decayed() ? config_.weight_decay : 0,
                 .beta1 = config_.beta1,
                 .beta2 = config_.beta2,
                 .epsilon = config_.epsilon,
                 .first = piece.first,
                 .second = piece.second,
                 .weight = table_.masters().Rows(piece.elements.begin, piece.elements.end)});
  }
  if (sharing_.shard_state) {
    FATHOM_RETURN_IF_ERROR(Share(/*matrices=*/false, table_.masters(), stream));
  }
  UpdateExpertBiases(stream);
  FATHOM_RETURN_IF_ERROR(muon_->Orthogonalize(stream, arena, step_));
  FATHOM_RETURN_IF_ERROR(expert_muon_->Orthogonalize(stream, arena, step_));
  FATHOM_RETURN_IF_ERROR(Share(/*matrices=*/true, table_.gradients(), stream));
  muon_->Apply(stream, step_);
  expert_muon_->Apply(stream, step_);
  table_.RoundWeights(stream);
  return absl::OkStatus();
}

absl::Status Optimizer::Share(bool matrices, const Tensor& all, Stream& stream) {
  std::vector<Completion> pending;
  for (const ParameterBucket& bucket : table_.layout().buckets) {
    Communicator& replicas = groups_.replicas(bucket.of_expert);
    const bool of_muon = config_.muon && bucket.role == UnitRole::kMatrices;
    if (of_muon != matrices || bucket.role == UnitRole::kCounts || replicas.size() == 1) continue;
    const ElementRange owned = bucket.OwnedBy(replicas.rank());
    pending.push_back(replicas.AllGather(all.Rows(owned.begin, owned.end),
                                         all.Rows(bucket.elements.begin, bucket.elements.end),
                                         stream, bucket.counts));
  }
  for (Completion& completion : pending) FATHOM_RETURN_IF_ERROR(completion.Wait(stream));
  return absl::OkStatus();
}

}  // namespace fathom
