#include "runtime/model/head.h"

#include <algorithm>

#include "kernels/cross_entropy.h"
#include "kernels/matmul.h"
#include "kernels/norm.h"
#include "parallel/element_range.h"
#include "runtime/model/tensor_parallel_linear.h"
#include "runtime/model/token_table.h"

namespace fathom {
namespace {

// Rows whose logits exist at a time: a few MB of them, so that they stay in a cache. The tensor
// ranks of a chunk share sums, so `vocabulary` must be the same number on all of them.
int64_t ChunkRows(int64_t rows, int64_t vocabulary) {
  constexpr int64_t kElements = int64_t{1} << 21;
  const int64_t chunk = std::clamp<int64_t>(kElements / vocabulary / 64 * 64, 64, 1024);
  return std::min(rows, chunk);
}

}  // namespace

struct Head::HeadSaved final : Saved {
  Tensor rstd;  // [held] stat
  Tensor d_y;   // [held, d] gradient of the final norm's output
};

Head::Head(const LayerSetup& setup)
    : tensor_(setup.tensor),
      tokens_(setup.tensor.PartOf(setup.config.vocabulary)),
      eps_(setup.config.eps),
      norm_(setup.table.Add({.name = "model.norm.weight",
                             .shape = {setup.config.d},
                             .role = ParameterRole::kNorm,
                             .gradient = setup.tensor.sequence() ? GradientOverRanks::kPartial
                                                                 : GradientOverRanks::kSame})),
      head_(setup.table.Add(TokenTable(setup, "lm_head.weight", ParameterRole::kHead))) {}

void Head::CrossEntropyOverRanks(Pass& pass, const Tensor& logits, const Tensor& labels,
                                 const Tensor& d_logits, double scale, const Tensor& losses) {
  Stream& stream = pass.stream;
  if (tensor_.size() == 1) {
    Launch(stream, CrossEntropy{.logits = logits,
                                .labels = labels,
                                .d_logits = d_logits,
                                .scale = scale,
                                .losses = losses});
    return;
  }
  ArenaScope scope(pass.arena);
  const int64_t rows = logits.dim(0);
  const Tensor maximum = pass.arena.New(logits.dtype(), {rows});
  const Tensor sums = pass.arena.New(logits.dtype(), {2, rows});
  Launch(stream, ShardMaximum{.logits = logits, .maximum = maximum});
  tensor_.AllReduce(maximum, stream, ReduceOp::kMax);
  Launch(stream, ShardSums{.logits = logits,
                           .labels = labels,
                           .first_token = tokens_.begin,
                           .maximum = maximum,
                           .sums = sums});
  tensor_.AllReduce(sums, stream);
  Launch(stream, ShardCrossEntropy{.logits = logits,
                                   .labels = labels,
                                   .first_token = tokens_.begin,
                                   .maximum = maximum,
                                   .sums = sums,
                                   .d_logits = d_logits,
                                   .scale = scale,
                                   .losses = losses});
}

void Head::Forward(Pass& pass, const Tensor& labels, double loss_weight, const Tensor& losses) {
  Stream& stream = pass.stream;
  Arena& arena = pass.arena;
  const DType dtype = pass.residual.dtype();
  const int64_t n = pass.rows();
  const int64_t d = pass.residual.dim(1);

  auto saved = std::make_unique<HeadSaved>();
  const Arena::Mark start = arena.mark();
  saved->rstd = arena.New(StatisticsDType(dtype), {pass.held.size()});
  if (pass.training) saved->d_y = arena.New(dtype, {pass.held.size(), d});
  {
    ArenaScope scope(arena);
    const Tensor y = arena.New(dtype, {n, d});
    NormToAllRows(
        pass, pass.all, tensor_,
        RmsNorm{.x = pass.residual, .weight = norm_->weight, .eps = eps_, .rstd = saved->rstd}, y);
    // This rank's part of the gradient of y, before the ranks' sum.
    Tensor d_y = saved->d_y;
    if (pass.training && pass.all.split) d_y = arena.New(dtype, {n, d});
    // The first rank's part of the vocabulary, the largest one, whichever rank this is.
    const int64_t chunk =
        ChunkRows(n, FlatShard(head_->spec.shape[0], tensor_.size(), /*rank=*/0).size());
    const Tensor all_logits = arena.New(StatisticsDType(dtype), {chunk, tokens_.size()});
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
      CrossEntropyOverRanks(pass, logits, labels.Rows(begin, end), d_logits, loss_weight,
                            losses.Rows(begin, end));
      if (pass.training) {
        LinearBackwardWeight(stream, d_logits, y.Rows(begin, end), head_->gradient);
        LinearBackwardInput(stream, d_logits, head_->weight, d_y.Rows(begin, end));
      }
    }
    if (pass.training) {
      if (pass.all.split) {
        tensor_.ReduceScatterRows(d_y, saved->d_y, stream);
      } else {
        tensor_.AllReduce(d_y, stream);
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
  FATHOM_CHECK_EQ(tensor_.size(), 1);
  ArenaScope scope(pass.arena);
  const DType dtype = pass.residual.dtype();
  const Tensor y = pass.arena.New(dtype, pass.residual.shape());
  const Tensor rstd = pass.arena.New(StatisticsDType(dtype), {pass.rows()});
  Launch(pass.stream,
         RmsNorm{.x = pass.residual, .weight = norm_->weight, .eps = eps_, .y = y, .rstd = rstd});
  LinearForward(pass.stream, y, head_->weight, logits);
}

}  // namespace fathom
