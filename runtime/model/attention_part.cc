#include "runtime/model/attention_part.h"

#include <cmath>

#include "kernels/attention.h"
#include "kernels/matmul.h"
#include "kernels/rotary.h"
#include "runtime/model/tensor_parallel_linear.h"

namespace fathom {

AttentionPart::AttentionPart(const LayerSetup& setup, const std::string& prefix,
                             GradientOverRanks norm_gradient)
    : tensor_(setup.tensor),
      heads_(setup.config.heads / setup.tensor.size()),
      kv_heads_(setup.config.kv_heads / setup.tensor.size()),
      head_dim_(setup.config.head_dim),
      eps_(setup.config.eps),
      scale_(1 / std::sqrt(static_cast<double>(setup.config.head_dim))) {
  ParameterTable& table = setup.table;
  const int64_t d = setup.config.d;
  const std::string attention = prefix + "self_attn.";
  const auto input_matrix = [&](const char* name, int64_t all_heads) {
    return RowMatrix(setup, attention + name, {all_heads * head_dim_, d});
  };
  const auto head_norm = [&](const char* name) {
    return table.Add({.name = attention + name,
                      .shape = {head_dim_},
                      .role = ParameterRole::kNorm,
                      .gradient = GradientOverRanks::kPartial});
  };
  norm_ = table.Add({.name = prefix + "input_layernorm.weight",
                     .shape = {d},
                     .role = ParameterRole::kNorm,
                     .gradient = norm_gradient});
  qkv_ = table.AddFused({input_matrix("q_proj.weight", setup.config.heads),
                         input_matrix("k_proj.weight", setup.config.kv_heads),
                         input_matrix("v_proj.weight", setup.config.kv_heads)});
  q_norm_ = head_norm("q_norm.weight");
  k_norm_ = head_norm("k_norm.weight");
  o_ = table.Add(
      ColumnMatrix(setup, attention + "o_proj.weight", {d, setup.config.heads * head_dim_}));
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
  s.rstd = arena.New(stat, {a.dim(0)});
  norm.weight = norm_->weight;
  norm.eps = eps_;
  norm.rstd = s.rstd;
  norm.count = rows.count;
  NormToAllRows(pass, rows, tensor_, norm, s.y);

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
  LinearToSum(pass, rows, tensor_, s.o, o_->weight, a);
  *saved = s;
}

void AttentionPart::Backward(Pass& pass, const Rows& rows, const Saved& saved,
                             const Tensor& d_output, RmsNormBackward norm) const {
  Stream& stream = pass.stream;
  ArenaScope scope(pass.arena);
  const Tensor d_a = GradientOfAllRows(pass, rows, tensor_, d_output);
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
  norm.weight = norm_->weight;
  norm.rstd = saved.rstd;
  norm.dy = LinearInputGradient(pass, rows, tensor_, d_qkv, qkv_->weight);
  norm.dweight = norm_->gradient;
  norm.count = rows.count;
  Launch(stream, norm);
}

}  // namespace fathom
