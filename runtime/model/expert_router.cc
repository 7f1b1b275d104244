#include "runtime/model/expert_router.h"

#include "kernels/elementwise.h"
#include "kernels/expert_rows.h"
#include "kernels/experts.h"
#include "kernels/matmul.h"
#include "runtime/model/expert_names.h"

namespace fathom {
namespace {

// Rows of a sequence among the layer's rows, in training.
int64_t SequenceRows(const Pass& pass, const Rows& rows) { return rows.capacity / pass.sequences; }

// x in stat: itself, or a copy in the arena.
Tensor InStatistics(Pass& pass, const Tensor& x) {
  const DType stat = StatisticsDType(x.dtype());
  if (x.dtype() == stat) return x;
  const Tensor copy = pass.arena.New(stat, x.shape());
  Launch(pass.stream, Copy{.x = x, .y = copy});
  return copy;
}

// How many of rows `window` are in use, in the arena; absent: all.
Tensor CountInWindow(Pass& pass, const Rows& rows, const ElementRange& window) {
  if (rows.count.absent()) return Tensor();
  const Tensor count = pass.arena.New(DType::kInt32, {1});
  Launch(pass.stream,
         RowsInWindow{
             .count = rows.count, .begin = window.begin, .end = window.end, .window_count = count});
  return count;
}

}  // namespace

ExpertRouter::ExpertRouter(const LayerSetup& setup, int64_t layer, const std::string& prefix)
    : tensor_(setup.tensor),
      over_tensor_(setup.experts.over_tensor()),
      layer_(layer),
      experts_(setup.config.experts),
      routed_(setup.config.routed),
      scoring_(setup.config.scoring) {
  // Each tensor rank computes what its rows give.
  gate_ = setup.table.Add({.name = prefix + "mlp.gate.weight",
                           .shape = {experts_, setup.config.d},
                           .role = ParameterRole::kRouter,
                           .deviation = kInitialDeviation,
                           .gradient = GradientOverRanks::kPartial});
  bias_ = setup.table.Add({.name = ExpertBiasName(layer),
                           .shape = {experts_},
                           .role = ParameterRole::kExpertBias,
                           .gradient = GradientOverRanks::kPartial,
                           .bias_rate = setup.config.expert_bias_rate});
}

double ExpertRouter::BalanceWeight(const Pass& pass, const Rows& rows) const {
  return pass.balance_weight / static_cast<double>(SequenceRows(pass, rows));
}

void ExpertRouter::ComputeLogits(Pass& pass, const Rows& rows, const Tensor& y,
                                 const Tensor& logits) const {
  const ElementRange own = Own(rows);
  ArenaScope scope(pass.arena);
  const Tensor x = InStatistics(pass, y.Rows(own.begin, own.end));
  const bool gathered = over_tensor_ && tensor_.size() > 1;
  const Tensor mine = gathered ? pass.arena.New(logits.dtype(), {own.size(), experts_}) : logits;
  LinearForward(pass.stream, x, gate_->weight, mine, CountInWindow(pass, rows, own));
  if (gathered) tensor_.AllGatherRows(mine, logits, pass.stream);
}

void ExpertRouter::Select(Pass& pass, const ExpertChoice& choice) const {
  if (!pass.expert_replay.empty()) {
    const Tensor& given = pass.expert_replay[layer_];
    Launch(pass.stream,
           Copy{.x = given.Rows(choice.seen.begin, choice.seen.end), .y = choice.experts});
  } else {
    Launch(pass.stream, SelectExperts{.scores = choice.scores,
                                      .bias = bias_->weight,
                                      .experts = choice.experts,
                                      .count = choice.count});
  }
  Launch(pass.stream, ExpertWeights{.scores = choice.scores,
                                    .experts = choice.experts,
                                    .weights = choice.weights,
                                    .count = choice.count});
}

void ExpertRouter::Count(Pass& pass, const Rows& rows, const ExpertChoice& choice) const {
  CountExperts count{.experts = choice.experts,
                     .count = choice.count,
                     .counts = choice.counts,
                     .sequence_counts = choice.sequence_counts,
                     .first_row = choice.seen.begin};
  if (pass.training) count.sequence_rows = SequenceRows(pass, rows);
  // Of rows that all tensor ranks see, one rank's counts.
  if (!over_tensor_ || tensor_.rank() == 0) {
    if (pass.training) {
      count.total = bias_->gradient;
    } else if (!pass.expert_rows.absent()) {
      count.total = pass.expert_rows.Rows(layer_, layer_ + 1).Reshape({experts_});
    }
  }
  Launch(pass.stream, count);
  if (pass.training && !over_tensor_) tensor_.AllReduce(choice.sequence_counts, pass.stream);
}

ExpertChoice ExpertRouter::Route(Pass& pass, const Rows& rows, const Tensor& y) const {
  Arena& arena = pass.arena;
  const DType stat = StatisticsDType(y.dtype());
  ExpertChoice choice;
  choice.seen = over_tensor_ ? ElementRange{0, rows.capacity} : Own(rows);
  const int64_t n = choice.seen.size();
  choice.count = CountInWindow(pass, rows, choice.seen);
  choice.scores = arena.New(stat, {n, experts_});
  choice.experts = arena.New(DType::kInt32, {n, routed_});
  choice.weights = arena.New(stat, {n, routed_});
  choice.counts = arena.New(DType::kInt32, {experts_});
  choice.row = arena.New(DType::kInt32, {n * routed_});
  choice.slot = arena.New(DType::kInt32, {n, routed_});
  if (pass.training) choice.sequence_counts = arena.New(stat, {pass.sequences, experts_});

  ComputeLogits(pass, rows, y, choice.scores);
  Launch(pass.stream, ExpertScores{.logits = choice.scores,
                                   .scoring = scoring_,
                                   .scores = choice.scores,
                                   .count = choice.count});
  Select(pass, choice);
  Count(pass, rows, choice);
  Launch(pass.stream, SortByExpert{.experts = choice.experts,
                                   .count = choice.count,
                                   .row = choice.row,
                                   .slot = choice.slot});
  pass.experts.push_back({.layer = layer_,
                          .layer_rows = rows.capacity,
                          .rows = choice.seen,
                          .experts = choice.experts,
                          .scores = choice.scores,
                          .bias = bias_->weight});
  if (pass.training && pass.balance_weight != 0) {
    const ElementRange own = Own(rows);
    Launch(pass.stream, BalanceLoss{.scores = choice.scores,
                                    .sequence_counts = choice.sequence_counts,
                                    .routed = routed_,
                                    .first_row = choice.seen.begin,
                                    .sequence_rows = SequenceRows(pass, rows),
                                    .weight = BalanceWeight(pass, rows),
                                    .loss = pass.auxiliary_part,
                                    .balance_begin = own.begin - choice.seen.begin,
                                    .balance_end = own.end - choice.seen.begin});
  }
  return choice;
}

void ExpertRouter::Backward(Pass& pass, const Rows& rows, const ExpertChoice& choice,
                            const Tensor& d_weights, const Tensor& y, const Tensor& d_y) const {
  Stream& stream = pass.stream;
  ArenaScope scope(pass.arena);
  const auto seen = [&](const Tensor& all) { return all.Rows(choice.seen.begin, choice.seen.end); };
  const ElementRange own = Own(rows);
  const Tensor d_logits = pass.arena.New(choice.scores.dtype(), choice.scores.shape());
  Launch(stream, ExpertLogitGradient{.scoring = scoring_,
                                     .scores = choice.scores,
                                     .experts = choice.experts,
                                     .weights = choice.weights,
                                     .d_weights = d_weights,
                                     .sequence_counts = choice.sequence_counts,
                                     .routed = routed_,
                                     .first_row = choice.seen.begin,
                                     .sequence_rows = SequenceRows(pass, rows),
                                     .balance_weight = BalanceWeight(pass, rows),
                                     .d_logits = d_logits,
                                     .count = choice.count,
                                     .balance_begin = own.begin - choice.seen.begin,
                                     .balance_end = own.end - choice.seen.begin});
  LinearBackwardWeight(stream, d_logits, InStatistics(pass, seen(y)), gate_->gradient,
                       choice.count);
  const Tensor d_x = pass.arena.New(d_logits.dtype(), {choice.seen.size(), y.dim(1)});
  LinearBackwardInput(stream, d_logits, gate_->weight, d_x, choice.count);
  Tensor addend = d_x;
  if (d_x.dtype() != d_y.dtype()) {
    addend = pass.arena.New(d_y.dtype(), d_x.shape());
    Launch(stream, Copy{.x = d_x, .y = addend});
  }
  Launch(stream, Axpby{.a = 1, .x = addend, .b = 1, .y = seen(d_y)});
}

}  // namespace fathom
