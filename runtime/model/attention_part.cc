#include "runtime/model/attention_part.h"

#include <cmath>

#include "kernels/attention.h"
#include "kernels/matmul.h"
#include "kernels/rotary.h"

namespace fathom {

AttentionPart::AttentionPart(const ModelConfig& config, const std::string& prefix,
                             double output_deviation, ParameterTable& table)
    : heads_(config.heads),
      kv_heads_(config.kv_heads),
      head_dim_(config.head_dim),
      eps_(config.eps),
      scale_(1 / std::sqrt(static_cast<double>(config.head_dim))) {
  const int64_t d = config.d;
  const std::string attention = prefix + "self_attn.";
  const auto matrix = [&](const char* name, int64_t rows) {
    return ParameterSpec{attention + name, {rows, d}, ParameterRole::kMatrix, kInitialDeviation};
  };
  norm_ = table.Add({prefix + "input_layernorm.weight", {d}, ParameterRole::kNorm});
  qkv_ = table.AddFused({matrix("q_proj.weight", heads_ * head_dim_),
                         matrix("k_proj.weight", kv_heads_ * head_dim_),
                         matrix("v_proj.weight", kv_heads_ * head_dim_)});
  q_norm_ = table.Add({attention + "q_norm.weight", {head_dim_}, ParameterRole::kNorm});
  k_norm_ = table.Add({attention + "k_norm.weight", {head_dim_}, ParameterRole::kNorm});
  o_ = table.Add({attention + "o_proj.weight",
                  {d, heads_ * head_dim_},
                  ParameterRole::kMatrix,
                  output_deviation});
}

void AttentionPart::Forward(Pass& pass, const Rows& rows, RmsNorm norm, const Tensor& a,
                            Saved* saved) const {
  Stream& stream = pass.stream;
  Arena& arena = pass.arena;
  const DType dtype = a.dtype();
  const DType stat = StatisticsDType(dtype);
  const int64_t m = rows.capacity;
  const int64_t q_width = heads_ * head_dim_;
  const int64_t kv_width = kv_heads_ * head_dim_;

  Saved s;
  s.y = arena.New(dtype, {m, a.dim(1)});
  s.rstd = arena.New(stat, {m});
  norm.weight = norm_->weight;
  norm.eps = eps_;
  norm.y = s.y;
  norm.rstd = s.rstd;
  norm.count = rows.count;
  Launch(stream, norm);

  s.qkv = arena.New(dtype, {m, q_width + 2 * kv_width});
  LinearForward(stream, s.y, qkv_->weight, s.qkv, rows.count);

  s.qk = arena.New(dtype, {m, q_width + kv_width});
  s.q_rstd = arena.New(stat, {m, heads_});
  s.k_rstd = arena.New(stat, {m, kv_heads_});
  HeadNormRotary rotary{.x = s.qkv.Columns(0, q_width),
                        .weight = q_norm_->weight,
                        .eps = eps_,
                        .positions = rows.positions,
                        .cosine = pass.cosine,
                        .sine = pass.sine,
                        .y = s.qk.Columns(0, q_width),
                        .rstd = s.q_rstd,
                        .count = rows.count};
  Launch(stream, rotary);
  rotary.x = s.qkv.Columns(q_width, q_width + kv_width);
  rotary.weight = k_norm_->weight;
  rotary.y = s.qk.Columns(q_width, q_width + kv_width);
  rotary.rstd = s.k_rstd;
  Launch(stream, rotary);

  s.o = arena.New(dtype, {m, q_width});
  s.lse = arena.New(stat, {m, heads_});
  Launch(stream, Attention{.q = s.qk.Columns(0, q_width),
                           .k = s.qk.Columns(q_width, q_width + kv_width),
                           .v = s.qkv.Columns(q_width + kv_width, q_width + 2 * kv_width),
                           .segments = rows.segments,
                           .heads = heads_,
                           .kv_heads = kv_heads_,
                           .scale = scale_,
                           .pairs = rows.pairs,
                           .o = s.o,
                           .lse = s.lse});
  LinearForward(stream, s.o, o_->weight, a, rows.count);
  *saved = s;
}

void AttentionPart::Backward(Pass& pass, const Rows& rows, const Saved& saved, const Tensor& d_a,
                             RmsNormBackward norm) const {
  Stream& stream = pass.stream;
  ArenaScope scope(pass.arena);
  const DType dtype = d_a.dtype();
  const int64_t m = rows.capacity;
  const int64_t q_width = heads_ * head_dim_;
  const int64_t kv_width = kv_heads_ * head_dim_;

  LinearBackwardWeight(stream, d_a, saved.o, o_->gradient, rows.count);
  const Tensor d_o = pass.arena.New(dtype, {m, q_width});
  LinearBackwardInput(stream, d_a, o_->weight, d_o, rows.count);

  const Tensor d_qkv = pass.arena.New(dtype, {m, q_width + 2 * kv_width});
  const Tensor dq = d_qkv.Columns(0, q_width);
  const Tensor dk = d_qkv.Columns(q_width, q_width + kv_width);
  Launch(stream,
         AttentionBackward{.q = saved.qk.Columns(0, q_width),
                           .k = saved.qk.Columns(q_width, q_width + kv_width),
                           .v = saved.qkv.Columns(q_width + kv_width, q_width + 2 * kv_width),
                           .segments = rows.segments,
                           .heads = heads_,
                           .kv_heads = kv_heads_,
                           .scale = scale_,
                           .pairs = rows.pairs,
                           .o = saved.o,
                           .lse = saved.lse,
                           .d_o = d_o,
                           .dq = dq,
                           .dk = dk,
                           .dv = d_qkv.Columns(q_width + kv_width, q_width + 2 * kv_width)});

  HeadNormRotaryBackward rotary{.x = saved.qkv.Columns(0, q_width),
                                .weight = q_norm_->weight,
                                .positions = rows.positions,
                                .cosine = pass.cosine,
                                .sine = pass.sine,
                                .rstd = saved.q_rstd,
                                .dy = dq,
                                .dx = dq,
                                .dweight = q_norm_->gradient,
                                .count = rows.count};
  Launch(stream, rotary);
  rotary.x = saved.qkv.Columns(q_width, q_width + kv_width);
  rotary.weight = k_norm_->weight;
  rotary.rstd = saved.k_rstd;
  rotary.dy = rotary.dx = dk;
  rotary.dweight = k_norm_->gradient;
  Launch(stream, rotary);

  LinearBackwardWeight(stream, d_qkv, saved.y, qkv_->gradient, rows.count);
  const Tensor d_y = pass.arena.New(dtype, {m, saved.y.dim(1)});
  LinearBackwardInput(stream, d_qkv, qkv_->weight, d_y, rows.count);
  norm.weight = norm_->weight;
  norm.rstd = saved.rstd;
  norm.dy = d_y;
  norm.dweight = norm_->gradient;
  norm.count = rows.count;
  Launch(stream, norm);
}

}  // namespace fathom
