#include "runtime/model/head.h"

#include <algorithm>

#include "kernels/cross_entropy.h"
#include "kernels/matmul.h"
#include "kernels/norm.h"

namespace fathom {
namespace {

// Rows whose logits exist at a time: a few MB of them, so that they stay in a cache.
int64_t ChunkRows(int64_t rows, int64_t vocabulary) {
  constexpr int64_t kElements = int64_t{1} << 21;
  const int64_t chunk = std::clamp<int64_t>(kElements / vocabulary / 64 * 64, 64, 1024);
  return std::min(rows, chunk);
}

}  // namespace

struct Head::HeadSaved final : Saved {
  Tensor rstd;  // [n] stat
  Tensor d_y;   // [n, d] gradient of the final norm's output
};

Head::Head(const ModelConfig& config, ParameterTable& table)
    : vocabulary_(config.vocabulary),
      eps_(config.eps),
      norm_(table.Add({"model.norm.weight", {config.d}, ParameterRole::kNorm})),
      head_(table.Add({"lm_head.weight",
                       {config.vocabulary, config.d},
                       ParameterRole::kHead,
                       kInitialDeviation})) {}

void Head::Forward(Pass& pass, const Tensor& labels, double loss_weight, const Tensor& losses) {
  Stream& stream = pass.stream;
  Arena& arena = pass.arena;
  const DType dtype = pass.residual.dtype();
  const int64_t n = pass.rows();
  const int64_t d = pass.residual.dim(1);

  auto saved = std::make_unique<HeadSaved>();
  const Arena::Mark start = arena.mark();
  saved->rstd = arena.New(StatisticsDType(dtype), {n});
  if (pass.training) saved->d_y = arena.New(dtype, {n, d});
  {
    ArenaScope scope(arena);
    const Tensor y = arena.New(dtype, {n, d});
    Launch(
        stream,
        RmsNorm{
            .x = pass.residual, .weight = norm_->weight, .eps = eps_, .y = y, .rstd = saved->rstd});
    const int64_t chunk = ChunkRows(n, vocabulary_);
    const Tensor all_logits = arena.New(StatisticsDType(dtype), {chunk, vocabulary_});
    // Their gradients, which the products below read: in the logits' place where the dtype allows.
    Tensor all_gradients;
    if (pass.training) {
      all_gradients =
          dtype == all_logits.dtype() ? all_logits : arena.New(dtype, all_logits.shape());
    }
    for (int64_t begin = 0; begin < n; begin += chunk) {
      const int64_t end = std::min(n, begin + chunk);
      const Tensor logits = all_logits.Rows(0, end - begin);
      LinearForward(stream, y.Rows(begin, end), head_->weight, logits);
      const Tensor d_logits = pass.training ? all_gradients.Rows(0, end - begin) : Tensor();
      Launch(stream, CrossEntropy{.logits = logits,
                                  .labels = labels.Rows(begin, end),
                                  .d_logits = d_logits,
                                  .scale = loss_weight,
                                  .losses = losses.Rows(begin, end)});
      if (pass.training) {
        LinearBackwardWeight(stream, d_logits, y.Rows(begin, end), head_->gradient);
        LinearBackwardInput(stream, d_logits, head_->weight, saved->d_y.Rows(begin, end));
      }
    }
  }
  if (pass.training) {
    pass.saved.push_back(std::move(saved));
  } else {
    arena.Release(start);
  }
}

void Head::Backward(Pass& pass) const {
  const auto& saved = static_cast<const HeadSaved&>(*pass.saved.back());
  pass.d_residual = pass.arena.New(pass.residual.dtype(), pass.residual.shape());
  Launch(pass.stream, RmsNormBackward{.x = pass.residual,
                                      .weight = norm_->weight,
                                      .rstd = saved.rstd,
                                      .dy = saved.d_y,
                                      .dx = pass.d_residual,
                                      .dweight = norm_->gradient});
  pass.saved.pop_back();
}

void Head::Logits(Pass& pass, const Tensor& logits) const {
  ArenaScope scope(pass.arena);
  const DType dtype = pass.residual.dtype();
  const Tensor y = pass.arena.New(dtype, pass.residual.shape());
  const Tensor rstd = pass.arena.New(StatisticsDType(dtype), {pass.rows()});
  Launch(pass.stream,
         RmsNorm{.x = pass.residual, .weight = norm_->weight, .eps = eps_, .y = y, .rstd = rstd});
  LinearForward(pass.stream, y, head_->weight, logits);
}

}  // namespace fathom
