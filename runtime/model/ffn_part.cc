#include "runtime/model/ffn_part.h"

#include "kernels/matmul.h"
#include "kernels/swiglu.h"
#include "runtime/model/tensor_parallel_linear.h"

namespace fathom {

FfnPart::FfnPart(const LayerSetup& setup, const std::string& prefix,
                 GradientOverRanks norm_gradient)
    : tensor_(setup.tensor), ffn_(setup.config.ffn / setup.tensor.size()), eps_(setup.config.eps) {
  ParameterTable& table = setup.table;
  const int64_t d = setup.config.d;
  const int64_t all_ffn = setup.config.ffn;
  const std::string mlp = prefix + "mlp.";
  norm_ = table.Add({.name = prefix + "post_attention_layernorm.weight",
                     .shape = {d},
                     .role = ParameterRole::kNorm,
                     .gradient = norm_gradient});
  gate_up_ = table.AddFused({RowMatrix(setup, mlp + "gate_proj.weight", {all_ffn, d}),
                             RowMatrix(setup, mlp + "up_proj.weight", {all_ffn, d})});
  down_ = table.Add(ColumnMatrix(setup, mlp + "down_proj.weight", {d, all_ffn}));
}

void FfnPart::Forward(Pass& pass, const Rows& rows, RmsNorm norm, const Tensor& f,
                      Saved* saved) const {
  Arena& arena = pass.arena;
  const DType dtype = f.dtype();
  const int64_t m = rows.capacity;

  Saved s;
  s.y = arena.New(dtype, {m, f.dim(1)});
  s.rstd = arena.New(StatisticsDType(dtype), {f.dim(0)});
  s.gate_up = arena.New(dtype, {m, 2 * ffn_});
  norm.weight = norm_->weight;
  norm.eps = eps_;
  norm.rstd = s.rstd;
  norm.count = rows.count;
  NormToAllRows(pass, rows, tensor_, norm, s.y);
  LinearForward(pass.stream, s.y, gate_up_->weight, s.gate_up, rows.count);
  {
    ArenaScope scope(arena);
    const Tensor activation = arena.New(dtype, {m, ffn_});
    Launch(pass.stream, SwiGlu{.gate_up = s.gate_up, .y = activation, .count = rows.count});
    LinearToSum(pass, rows, tensor_, activation, down_->weight, f);
  }
  *saved = s;
}

void FfnPart::Backward(Pass& pass, const Rows& rows, const Saved& saved, const Tensor& d_output,
                       RmsNormBackward norm) const {
  ArenaScope scope(pass.arena);
  Stream& stream = pass.stream;
  const Tensor d_f = GradientOfAllRows(pass, rows, tensor_, d_output);
  const DType dtype = d_f.dtype();
  const int64_t m = rows.capacity;

  const Tensor d_activation = pass.arena.New(dtype, {m, ffn_});
  LinearBackwardInput(stream, d_f, down_->weight, d_activation, rows.count);
  const Tensor activation = pass.arena.New(dtype, {m, ffn_});
  const Tensor d_gate_up = pass.arena.New(dtype, {m, 2 * ffn_});
  Launch(stream, SwiGluBackward{.gate_up = saved.gate_up,
                                .dy = d_activation,
                                .d_gate_up = d_gate_up,
                                .y = activation,
                                .count = rows.count});
  LinearBackwardWeight(stream, d_f, activation, down_->gradient, rows.count);
  LinearBackwardWeight(stream, d_gate_up, saved.y, gate_up_->gradient, rows.count);
  norm.weight = norm_->weight;
  norm.rstd = saved.rstd;
  norm.dy = LinearInputGradient(pass, rows, tensor_, d_gate_up, gate_up_->weight);
  norm.dweight = norm_->gradient;
  norm.count = rows.count;
  Launch(stream, norm);
}

}  // namespace fathom
