#include "runtime/model/moe_part.h"

#include "absl/strings/str_cat.h"
#include "kernels/elementwise.h"
#include "kernels/expert_rows.h"
#include "kernels/grouped_matmul.h"
#include "kernels/matmul.h"
#include "kernels/swiglu.h"
#include "runtime/model/tensor_parallel_linear.h"

namespace fathom {

struct MoePart::MoeSaved final : Saved {
  Tensor y;     // [m, d] T
  Tensor rstd;  // [m] stat
  ExpertChoice choice;
  ExpertExchange exchange;
  Tensor x;               // [received, d] T: rows of this rank's experts
  Tensor gate_up;         // [received, 2F/T] T
  Tensor outputs;         // [sent, d] T: what this rank's rows got from their experts
  Tensor shared_gate_up;  // [m, 2S/T] T, with shared experts of width S
};

MoePart::MoePart(const LayerSetup& setup, int64_t layer, const std::string& prefix,
                 GradientOverRanks norm_gradient)
    : tensor_(setup.tensor),
      group_(setup.experts),
      eps_(setup.config.eps),
      routed_(setup.config.routed),
      width_(setup.config.expert_ffn / (setup.experts.over_tensor() ? setup.tensor.size() : 1)),
      norm_(setup.table.Add({.name = prefix + "post_attention_layernorm.weight",
                             .shape = {setup.config.d},
                             .role = ParameterRole::kNorm,
                             .gradient = norm_gradient})),
      router_(setup, layer, prefix) {
  if (setup.config.shared > 0) {
    shared_.emplace(setup, prefix + "mlp.shared_experts.",
                    setup.config.shared * setup.config.expert_ffn);
  }
  AddExperts(setup, prefix + "mlp.experts.");
}

void MoePart::AddExperts(const LayerSetup& setup, const std::string& prefix) {
  const int64_t d = setup.config.d;
  const int64_t width = setup.config.expert_ffn;
  const ElementRange mine = group_.PartOf(setup.config.experts);
  for (int64_t e = mine.begin; e < mine.end; ++e) {
    const std::string name = absl::StrCat(prefix, e, ".");
    experts_.gate_up.push_back(
        setup.table.AddFused({ExpertRowMatrix(setup, name + "gate_proj.weight", {width, d}),
                              ExpertRowMatrix(setup, name + "up_proj.weight", {width, d})}));
    experts_.down.push_back(
        setup.table.Add(ExpertColumnMatrix(setup, name + "down_proj.weight", {d, width})));
  }
}

namespace {

std::vector<Tensor> Weights(const std::vector<const FusedMatrix*>& matrices) {
  std::vector<Tensor> tensors;
  for (const FusedMatrix* matrix : matrices) tensors.push_back(matrix->weight);
  return tensors;
}
std::vector<Tensor> Weights(const std::vector<const Parameter*>& matrices) {
  std::vector<Tensor> tensors;
  for (const Parameter* matrix : matrices) tensors.push_back(matrix->weight);
  return tensors;
}
template <class Matrix>
std::vector<Tensor> Gradients(const std::vector<const Matrix*>& matrices) {
  std::vector<Tensor> tensors;
  for (const Matrix* matrix : matrices) tensors.push_back(matrix->gradient);
  return tensors;
}

}  // namespace

void MoePart::RunExperts(Pass& pass, const MoeSaved& s, const Tensor& out) const {
  const std::vector<int64_t>& rows = s.exchange.expert_rows;
  ArenaScope scope(pass.arena);
  GroupedLinearForward(pass.stream, s.x, Weights(experts_.gate_up), rows, s.gate_up);
  const Tensor activation = pass.arena.New(s.x.dtype(), {s.exchange.received, width_});
  Launch(pass.stream, SwiGlu{.gate_up = s.gate_up, .y = activation});
  GroupedLinearForward(pass.stream, activation, Weights(experts_.down), rows, out);
}

std::unique_ptr<Saved> MoePart::Forward(Pass& pass, const Rows& rows, RmsNorm norm,
                                        const Tensor& f) const {
  Arena& arena = pass.arena;
  const DType dtype = f.dtype();
  const int64_t m = rows.capacity;
  const int64_t d = f.dim(1);

  auto saved = std::make_unique<MoeSaved>();
  MoeSaved& s = *saved;
  s.y = arena.New(dtype, {m, d});
  s.rstd = arena.New(StatisticsDType(dtype), {f.dim(0)});
  norm.weight = norm_->weight;
  norm.eps = eps_;
  norm.rstd = s.rstd;
  norm.count = rows.count;
  NormToAllRows(pass, rows, tensor_, norm, s.y);
  s.choice = router_.Route(pass, rows, s.y);
  const ElementRange& seen = s.choice.seen;
  s.exchange = PlanExchange(pass, group_, s.choice.counts, seen.size() * routed_);
  const int64_t sent = s.exchange.sent;
  const int64_t received = s.exchange.received;
  s.x = arena.New(dtype, {received, d});
  s.gate_up = arena.New(dtype, {received, 2 * width_});
  s.outputs = arena.New(dtype, {sent, d});
  if (shared_) s.shared_gate_up = arena.New(dtype, {m, shared_->gate_up_width()});

  ArenaScope scope(arena);
  const bool alone = group_.size() == 1;
  const Tensor leaving = alone ? s.x : arena.New(dtype, {sent, d});
  Launch(pass.stream, GatherRows{.x = s.y.Rows(seen.begin, seen.end),
                                 .index = s.choice.row.Rows(0, sent),
                                 .y = leaving});
  ExpertTransfer dispatch(pass, group_, s.exchange, /*home=*/false, leaving, s.x);
  if (shared_) shared_->Up(pass, s.y, rows.count, s.shared_gate_up);
  dispatch.Finish();
  const Tensor out = alone ? s.outputs : arena.New(dtype, {received, d});
  RunExperts(pass, s, out);
  ExpertTransfer combine(pass, group_, s.exchange, /*home=*/true, out, s.outputs);
  const Tensor part = NewPart(pass, rows, f);
  if (shared_) {
    shared_->Down(pass, s.shared_gate_up, rows.count, part);
  } else {
    Launch(pass.stream, Fill{.value = 0, .y = part});
  }
  combine.Finish();
  Launch(pass.stream, CombineExperts{.x = s.outputs,
                                     .slot = s.choice.slot,
                                     .weights = s.choice.weights,
                                     .y = part.Rows(seen.begin, seen.end),
                                     .count = s.choice.count});
  SumParts(pass, rows, tensor_, part, f);
  return saved;
}

void MoePart::RunExpertsBackward(Pass& pass, const MoeSaved& s, const Tensor& d_out,
                                 const Tensor& d_x) const {
  Stream& stream = pass.stream;
  const DType dtype = d_out.dtype();
  const std::vector<int64_t>& rows = s.exchange.expert_rows;
  const int64_t received = s.exchange.received;
  ArenaScope scope(pass.arena);
  const Tensor d_activation = pass.arena.New(dtype, {received, width_});
  const Tensor activation = pass.arena.New(dtype, {received, width_});
  const Tensor d_gate_up = pass.arena.New(dtype, {received, 2 * width_});
  GroupedLinearBackwardInput(stream, d_out, Weights(experts_.down), rows, d_activation);
  Launch(stream,
         SwiGluBackward{
             .gate_up = s.gate_up, .dy = d_activation, .d_gate_up = d_gate_up, .y = activation});
  GroupedLinearBackwardWeight(stream, d_out, activation, rows, Gradients(experts_.down));
  GroupedLinearBackwardWeight(stream, d_gate_up, s.x, rows, Gradients(experts_.gate_up));
  GroupedLinearBackwardInput(stream, d_gate_up, Weights(experts_.gate_up), rows, d_x);
}

void MoePart::Backward(Pass& pass, const Rows& rows, const Saved& saved_base,
                       const Tensor& d_output, RmsNormBackward norm) const {
  const auto& s = static_cast<const MoeSaved&>(saved_base);
  ArenaScope scope(pass.arena);
  Stream& stream = pass.stream;
  Arena& arena = pass.arena;
  const DType dtype = d_output.dtype();
  const int64_t d = d_output.dim(1);
  const ExpertChoice& choice = s.choice;
  const ElementRange& seen = choice.seen;
  const bool alone = group_.size() == 1;

  const Tensor d_f = GradientOfAllRows(pass, rows, tensor_, d_output);
  const Tensor d_y = arena.New(dtype, {d_output.dim(0), d});
  const Tensor part = NewPart(pass, rows, d_y);
  const Tensor d_weights = arena.New(choice.weights.dtype(), choice.weights.shape());
  const Tensor d_outputs = arena.New(dtype, {s.exchange.sent, d});
  Launch(stream, CombineExpertsBackward{.dy = d_f.Rows(seen.begin, seen.end),
                                        .x = s.outputs,
                                        .slot = choice.slot,
                                        .weights = choice.weights,
                                        .dx = d_outputs,
                                        .d_weights = d_weights,
                                        .count = choice.count});
  const Tensor d_out = alone ? d_outputs : arena.New(dtype, {s.exchange.received, d});
  ExpertTransfer dispatch(pass, group_, s.exchange, /*home=*/false, d_outputs, d_out);
  Tensor d_shared;
  if (shared_) d_shared = shared_->DownBackward(pass, d_f, s.shared_gate_up, rows.count);
  dispatch.Finish();
  const Tensor d_x = arena.New(dtype, {s.exchange.received, d});
  RunExpertsBackward(pass, s, d_out, d_x);
  const Tensor d_rows = alone ? d_x : arena.New(dtype, {s.exchange.sent, d});
  ExpertTransfer combine(pass, group_, s.exchange, /*home=*/true, d_x, d_rows);
  if (shared_) {
    shared_->UpBackward(pass, d_shared, s.y, rows.count);
    LinearBackwardInput(stream, d_shared, shared_->up_weight(), part, rows.count);
  } else {
    Launch(stream, Fill{.value = 0, .y = part});
  }
  router_.Backward(pass, rows, choice, d_weights, s.y, part);
  combine.Finish();
  Launch(stream, CombineExperts{.x = d_rows,
                                .slot = choice.slot,
                                .y = part.Rows(seen.begin, seen.end),
                                .count = choice.count});
  SumParts(pass, rows, tensor_, part, d_y);
  norm.weight = norm_->weight;
  norm.rstd = s.rstd;
  norm.dy = d_y;
  norm.dweight = norm_->gradient;
  norm.count = rows.count;
  Launch(stream, norm);
}

}  // namespace fathom
