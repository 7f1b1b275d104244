#pragma once

#include <cstdint>
#include <string>

#include "runtime/model/layer_setup.h"
#include "runtime/model/pass.h"

namespace fathom {

// Where the rows of one layer go. N rows are seen by this rank: its part of the layer's m rows, or
// all of them with ExpertGroup::over_tensor.
struct ExpertChoice {
  ElementRange seen;       // of the m rows
  Tensor count;            // [1] int32: how many of `seen` are in use; absent: all
  Tensor scores;           // [N, E] stat
  Tensor experts;          // [N, routed] int32, ascending
  Tensor weights;          // [N, routed] stat
  Tensor counts;           // [E] int32: rows of each expert
  Tensor row;              // [N * routed] int32: of each choice, by expert, among `seen`
  Tensor slot;             // [N, routed] int32: the place of each choice in that order
  Tensor sequence_counts;  // [B, E] stat, of whole sequences, in training
};

// Chooses experts for tokens: with scores = sigmoid or softmax of Gate y, the `routed` experts of
// the largest score + bias; their weights are their scores by the sum of these (DeepSeek-AI,
// "DeepSeek-V3 technical report", 2024, section 2.1.2). The logits of a token are computed by one
// tensor rank; scores are stat in every precision.
class ExpertRouter {
 public:
  // Adds `mlp.gate.weight` [E, d] and `mlp.gate.e_score_correction_bias` [E] under `prefix`.
  ExpertRouter(const LayerSetup& setup, int64_t layer, const std::string& prefix);

  // y [m, d]: the normed rows. Counts the choices and, in training, adds the balance loss
  //   sum_e f_e P_e, f_e = E/(routed M) count_e, P_e = mean of score_e / (sum of the scores)
  // of each sequence of M rows.
  ExpertChoice Route(Pass& pass, const Rows& rows, const Tensor& y) const;
  // From the gradient of the weights, d_weights [N, routed] stat: adds to the gradient of Gate and
  // to d_y [m, d], of which this rank's part is enough.
  void Backward(Pass& pass, const Rows& rows, const ExpertChoice& choice, const Tensor& d_weights,
                const Tensor& y, const Tensor& d_y) const;

 private:
  // The part of the layer's rows whose logits this rank computes.
  ElementRange Own(const Rows& rows) const { return tensor_.PartOf(rows.capacity); }
  void ComputeLogits(Pass& pass, const Rows& rows, const Tensor& y, const Tensor& logits) const;
  void Select(Pass& pass, const ExpertChoice& choice) const;
  // Also where the counts are added up.
  void Count(Pass& pass, const Rows& rows, const ExpertChoice& choice) const;
  // Of a row in the balance loss.
  double BalanceWeight(const Pass& pass, const Rows& rows) const;

  TensorGroup& tensor_;
  bool over_tensor_;
  int64_t layer_;
  int64_t experts_, routed_;
  Scoring scoring_;
  const Parameter* gate_;
  const Parameter* bias_;
};

}  // namespace fathom
