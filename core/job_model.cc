#include "core/job_model.h"

#include <algorithm>

#include "core/job_check.h"
#include "core/status.h"

namespace fathom {
namespace {

// Sizes stay below this, so that the product of any two fits in int64 with room for a factor.
constexpr int64_t kMaximumSize = int64_t{1} << 24;
// Enough for any model; a slip such as `repeat: 1000000000` must not fill the memory.
constexpr int64_t kMaximumLayers = 100'000;
// Of a layer; each has parameters of its own.
constexpr int64_t kMaximumExperts = int64_t{1} << 16;

Gate ToGate(proto::Model::Gate gate) {
  switch (gate) {
    case proto::Model::XMOD:
      return Gate::kXMod;
    case proto::Model::MOD:
      return Gate::kMod;
    case proto::Model::NONE:
      return Gate::kNone;
  }
  return Gate::kXMod;
}

using Segments = google::protobuf::RepeatedPtrField<proto::PlanSegment>;

absl::StatusOr<std::vector<PlanSegment>> ToSegments(const Segments& plan, const std::string& path,
                                                    int64_t sequence_length);

absl::StatusOr<LayerSpec> ToSparse(const proto::PlanSegment::Sparse& sparse,
                                   const std::string& path, int64_t sequence_length) {
  if (!sparse.has_sparsity()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " has no sparsity; it must be given, e.g. sparse { sparsity: 16 }"));
  }
  const int64_t sparsity = sparse.sparsity();
  if (sparsity < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ".sparsity is ", sparsity, ", but it must be 1 or more"));
  }
  if (sparsity > sequence_length) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ".sparsity is ", sparsity, ", which is larger than train.sequence_length ",
        sequence_length, ", so a sparse layer would select no token"));
  }
  return LayerSpec{.kind = LayerKind::kSparse, .sparsity = sparsity, .experts = sparse.experts()};
}

absl::StatusOr<PlanSegment> ToSegment(const proto::PlanSegment& segment, const std::string& path,
                                      int64_t sequence_length) {
  JobChecks checks;
  checks.Between(path + ".repeat", segment.repeat(), int64_t{1}, kMaximumLayers);
  if (!checks.ok()) return checks.status();
  PlanSegment result;
  result.repeat = segment.repeat();
  switch (segment.kind_case()) {
    case proto::PlanSegment::kDense:
      return result;
    case proto::PlanSegment::kSparse: {
      FATHOM_ASSIGN_OR_RETURN(result.layer,
                              ToSparse(segment.sparse(), path + ".sparse", sequence_length));
      return result;
    }
    case proto::PlanSegment::kMoe:
      result.layer.experts = true;
      return result;
    case proto::PlanSegment::kGroup: {
      FATHOM_ASSIGN_OR_RETURN(
          result.group, ToSegments(segment.group().plan(), path + ".group.plan", sequence_length));
      return result;
    }
    case proto::PlanSegment::KIND_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      path,
      " names no layer; it must hold dense {}, moe {}, sparse { sparsity: K } or group { plan ... "
      "}"));
}

absl::StatusOr<std::vector<PlanSegment>> ToSegments(const Segments& plan, const std::string& path,
                                                    int64_t sequence_length) {
  if (plan.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, " is empty; it must list the layers, e.g. plan { repeat: 28 dense {} }"));
  }
  std::vector<PlanSegment> result;
  for (int i = 0; i < plan.size(); ++i) {
    FATHOM_ASSIGN_OR_RETURN(PlanSegment segment,
                            ToSegment(plan[i], absl::StrCat(path, "[", i, "]"), sequence_length));
    result.push_back(std::move(segment));
  }
  return result;
}

// The number of layers that `segments` stand for; anything above kMaximumLayers is a number above
// kMaximumLayers.
int64_t CountLayers(const std::vector<PlanSegment>& segments) {
  int64_t count = 0;
  for (const PlanSegment& segment : segments) {
    const int64_t each = segment.group.empty() ? 1 : CountLayers(segment.group);
    count = std::min(count + segment.repeat * each, kMaximumLayers + 1);
  }
  return count;
}

absl::StatusOr<LayerPlan> ToPlan(const proto::Model& model, int64_t sequence_length) {
  FATHOM_ASSIGN_OR_RETURN(std::vector<PlanSegment> segments,
                          ToSegments(model.plan(), "model.plan", sequence_length));
  if (CountLayers(segments) > kMaximumLayers) {
    return absl::InvalidArgumentError(absl::StrCat("model.plan is ", ShortForm(segments),
                                                   ", but it must have at most ", kMaximumLayers,
                                                   " layers"));
  }
  return MakeLayerPlan(std::move(segments), model.reset_every());
}

absl::Status CheckSizes(const proto::Model& model) {
  JobChecks checks;
  const int64_t one = 1;
  checks.Between("model.d", model.d(), one, kMaximumSize);
  checks.Between("model.heads", model.heads(), one, kMaximumSize);
  checks.Between("model.kv_heads", model.kv_heads(), one, kMaximumSize);
  checks.Between("model.head_dim", model.head_dim(), one, kMaximumSize);
  if (model.has_ffn()) checks.Between("model.ffn", model.ffn(), one, kMaximumSize);
  checks.Between("model.vocabulary", model.vocabulary(), int64_t{2}, kMaximumSize);
  if (!checks.ok()) return checks.status();
  checks.Require(model.heads() % model.kv_heads() == 0, "model.heads", model.heads(),
                 absl::StrCat("a multiple of model.kv_heads, which is ", model.kv_heads()));
  checks.Require(model.head_dim() % 2 == 0, "model.head_dim", model.head_dim(),
                 "even, since rotary positions turn pairs");
  checks.Require(model.heads() * model.head_dim() <= kMaximumSize, "model.heads", model.heads(),
                 absl::StrCat("at most ", kMaximumSize / model.head_dim(), " with model.head_dim ",
                              model.head_dim()));
  return checks.status();
}

// Sizes that a plan with mixtures of experts needs; other plans make nothing of them.
absl::Status CheckExperts(const proto::Model& model, bool needed) {
  JobChecks checks;
  const int64_t least = needed ? 1 : 0;
  checks.Between("model.experts", model.experts(), least, kMaximumExperts);
  checks.Between("model.routed", model.routed(), least, kMaximumExperts);
  checks.Between("model.shared", model.shared(), int64_t{0}, kMaximumExperts);
  checks.Between("model.expert_ffn", model.expert_ffn(), least, kMaximumSize);
  if (!checks.ok()) return checks.status();
  checks.Require(model.routed() <= model.experts(), "model.routed", model.routed(),
                 absl::StrCat("at most model.experts, which is ", model.experts()));
  checks.Require(model.shared() * model.expert_ffn() <= kMaximumSize, "model.shared",
                 model.shared(),
                 absl::StrCat("at most ", kMaximumSize / std::max<int64_t>(1, model.expert_ffn()),
                              " with model.expert_ffn ", model.expert_ffn()));
  checks.NotNegative("model.balance_coefficient", model.balance_coefficient());
  checks.NotNegative("model.expert_bias_rate", model.expert_bias_rate());
  return checks.status();
}

// What the plan needs besides the sizes that every model has.
absl::Status CheckFfns(const proto::Model& model, const LayerPlan& plan) {
  if (plan.has_dense_ffn() && !model.has_ffn()) {
    return absl::InvalidArgumentError("model.ffn is not set, but it has no default");
  }
  const std::pair<const char*, bool> sizes[] = {{"experts", model.has_experts()},
                                                {"routed", model.has_routed()},
                                                {"expert_ffn", model.has_expert_ffn()}};
  for (const auto& [name, is_set] : sizes) {
    if (is_set || !plan.has_experts()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("model.", name, " is not set, but model.plan, which is ",
                     ShortForm(plan.segments), ", has mixtures of experts"));
  }
  return CheckExperts(model, plan.has_experts());
}

absl::Status CheckRest(const proto::Model& model) {
  JobChecks checks;
  checks.Positive("model.theta", model.theta());
  checks.Positive("model.eps", model.eps());
  checks.NotNegative("model.reset_every", static_cast<double>(model.reset_every()));
  checks.NotNegative("model.routing_coefficient", model.routing_coefficient());
  return checks.status();
}

}  // namespace

absl::StatusOr<ModelConfig> ToModelConfig(const proto::Model& model, int64_t sequence_length) {
  FATHOM_RETURN_IF_ERROR(CheckSizes(model));
  FATHOM_RETURN_IF_ERROR(CheckRest(model));
  ModelConfig config;
  config.d = model.d();
  config.heads = model.heads();
  config.kv_heads = model.kv_heads();
  config.head_dim = model.head_dim();
  config.ffn = model.ffn();
  config.vocabulary = model.vocabulary();
  config.theta = model.theta();
  config.eps = model.eps();
  config.gate = ToGate(model.gate());
  config.tau = model.tau();
  config.increment = model.increment();
  config.alignment = model.alignment() == proto::Model::RAW ? Alignment::kRaw : Alignment::kBiased;
  config.routing_coefficient = model.routing_coefficient();
  config.reset_every = model.reset_every();
  config.experts = model.experts();
  config.routed = model.routed();
  config.shared = model.shared();
  config.expert_ffn = model.expert_ffn();
  config.scoring = model.scoring() == proto::Model::SOFTMAX ? Scoring::kSoftmax : Scoring::kSigmoid;
  config.balance_coefficient = model.balance_coefficient();
  config.expert_bias_rate = model.expert_bias_rate();
  FATHOM_ASSIGN_OR_RETURN(config.plan, ToPlan(model, sequence_length));
  FATHOM_RETURN_IF_ERROR(CheckFfns(model, config.plan));
  return config;
}

}  // namespace fathom
