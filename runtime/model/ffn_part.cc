#include "runtime/model/ffn_part.h"

#include "runtime/model/tensor_parallel_linear.h"

namespace fathom {
namespace {

struct FfnSaved final : Saved {
  Tensor y;        // [m, d] T
  Tensor rstd;     // [m] stat
  Tensor gate_up;  // [m, 2F/T] T
};

}  // namespace

FfnPart::FfnPart(const LayerSetup& setup, const std::string& prefix,
                 GradientOverRanks norm_gradient)
    : tensor_(setup.tensor),
      eps_(setup.config.eps),
      norm_(setup.table.Add({.name = prefix + "post_attention_layernorm.weight",
                             .shape = {setup.config.d},
                             .role = ParameterRole::kNorm,
                             .gradient = norm_gradient})),
      ffn_(setup, prefix + "mlp.", setup.config.ffn) {}

std::unique_ptr<Saved> FfnPart::Forward(Pass& pass, const Rows& rows, RmsNorm norm,
                                        const Tensor& f) const {
  Arena& arena = pass.arena;
  const DType dtype = f.dtype();
  const int64_t m = rows.capacity;

  auto saved = std::make_unique<FfnSaved>();
  saved->y = arena.New(dtype, {m, f.dim(1)});
  saved->rstd = arena.New(StatisticsDType(dtype), {f.dim(0)});
  saved->gate_up = arena.New(dtype, {m, ffn_.gate_up_width()});
  norm.weight = norm_->weight;
  norm.eps = eps_;
  norm.rstd = saved->rstd;
  norm.count = rows.count;
  NormToAllRows(pass, rows, tensor_, norm, saved->y);
  ffn_.Up(pass, saved->y, rows.count, saved->gate_up);
  ArenaScope scope(arena);
  const Tensor part = NewPart(pass, rows, f);
  ffn_.Down(pass, saved->gate_up, rows.count, part);
  SumParts(pass, rows, tensor_, part, f);
  return saved;
}

void FfnPart::Backward(Pass& pass, const Rows& rows, const Saved& saved_base,
                       const Tensor& d_output, RmsNormBackward norm) const {
  const auto& saved = static_cast<const FfnSaved&>(saved_base);
  ArenaScope scope(pass.arena);
  const Tensor d_f = GradientOfAllRows(pass, rows, tensor_, d_output);
  const Tensor d_gate_up = ffn_.DownBackward(pass, d_f, saved.gate_up, rows.count);
  ffn_.UpBackward(pass, d_gate_up, saved.y, rows.count);
  norm.weight = norm_->weight;
  norm.rstd = saved.rstd;
  norm.dy = LinearInputGradient(pass, rows, tensor_, d_gate_up, ffn_.up_weight());
  norm.dweight = norm_->gradient;
  norm.count = rows.count;
  Launch(pass.stream, norm);
}

}  // namespace fathom
