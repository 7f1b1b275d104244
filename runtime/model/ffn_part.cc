#include "runtime/model/ffn_part.h"

#include "kernels/matmul.h"
#include "kernels/swiglu.h"

namespace fathom {

FfnPart::FfnPart(const ModelConfig& config, const std::string& prefix, double output_deviation,
                 ParameterTable& table)
    : ffn_(config.ffn), eps_(config.eps) {
  const int64_t d = config.d;
  const std::string mlp = prefix + "mlp.";
  const auto matrix = [&](const char* name) {
    return ParameterSpec{mlp + name, {ffn_, d}, ParameterRole::kMatrix, kInitialDeviation};
  };
  norm_ = table.Add({prefix + "post_attention_layernorm.weight", {d}, ParameterRole::kNorm});
  gate_up_ = table.AddFused({matrix("gate_proj.weight"), matrix("up_proj.weight")});
  down_ =
      table.Add({mlp + "down_proj.weight", {d, ffn_}, ParameterRole::kMatrix, output_deviation});
}

void FfnPart::Forward(Pass& pass, const Rows& rows, RmsNorm norm, const Tensor& f,
                      Saved* saved) const {
  Arena& arena = pass.arena;
  const DType dtype = f.dtype();
  const int64_t m = rows.capacity;

  Saved s;
  s.y = arena.New(dtype, {m, f.dim(1)});
  s.rstd = arena.New(StatisticsDType(dtype), {m});
  s.gate_up = arena.New(dtype, {m, 2 * ffn_});
  norm.weight = norm_->weight;
  norm.eps = eps_;
  norm.y = s.y;
  norm.rstd = s.rstd;
  norm.count = rows.count;
  Launch(pass.stream, norm);
  LinearForward(pass.stream, s.y, gate_up_->weight, s.gate_up, rows.count);
  {
    ArenaScope scope(arena);
    const Tensor activation = arena.New(dtype, {m, ffn_});
    Launch(pass.stream, SwiGlu{.gate_up = s.gate_up, .y = activation, .count = rows.count});
    LinearForward(pass.stream, activation, down_->weight, f, rows.count);
  }
  *saved = s;
}

void FfnPart::Backward(Pass& pass, const Rows& rows, const Saved& saved, const Tensor& d_f,
                       RmsNormBackward norm) const {
  ArenaScope scope(pass.arena);
  Stream& stream = pass.stream;
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
  const Tensor d_y = pass.arena.New(dtype, {m, saved.y.dim(1)});
  LinearBackwardInput(stream, d_gate_up, gate_up_->weight, d_y, rows.count);
  norm.weight = norm_->weight;
  norm.rstd = saved.rstd;
  norm.dy = d_y;
  norm.dweight = norm_->gradient;
  norm.count = rows.count;
  Launch(stream, norm);
}

}  // namespace fathom
