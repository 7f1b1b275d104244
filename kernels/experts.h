#pragma once

#include <string_view>

#include "core/routing.h"
#include "kernels/launch.h"

namespace fathom {

// Token routing of a mixture-of-experts layer (DeepSeek-AI, "DeepSeek-V3 technical report", 2024,
// section 2.1.2): N rows choose `routed` of E experts each. What moves rows to their experts and
// back stands in expert_rows.h.
//
// Where rows belong to sequences, row i of a call is row first_row + i of all rows, and part of
// sequence (first_row + i) / sequence_rows. The balance loss of a sequence of L rows is
//   sum_e f_e P_e,  f_e = E / (routed * L) * counts_e,  P_e = mean_i score_ie / sum_e' score_ie',
// with counts_e the rows of the sequence that chose expert e.

// Each logit's sigmoid, or the softmax of each row.
struct ExpertScores {
  static constexpr std::string_view kName = "expert_scores";
  Tensor logits;  // [N, E] stat
  Scoring scoring = Scoring::kSigmoid;
  Tensor scores;  // [N, E] stat; may be `logits`
  Tensor count;   // [1] int32 or absent
  Cost cost() const;
};
void RunOnCpu(const ExpertScores& operation, CpuStream& stream);

// The `routed` experts of each row with the largest score + bias; ties go to the lower expert. A
// NaN ranks above everything (so that it is noticed), -0 equals 0.
struct SelectExperts {
  static constexpr std::string_view kName = "select_experts";
  Tensor scores;   // [N, E] stat
  Tensor bias;     // [E] stat, or absent for 0
  Tensor experts;  // [N, routed] int32, 1 <= routed <= E; ascending within a row
  Tensor count;    // [1] int32 or absent
  Cost cost() const;
};
void RunOnCpu(const SelectExperts& operation, CpuStream& stream);

// weights_ij = the score of expert j of row i / (the sum of the row's chosen scores + 1e-20).
struct ExpertWeights {
  static constexpr std::string_view kName = "expert_weights";
  Tensor scores;   // [N, E] stat
  Tensor experts;  // [N, routed] int32
  Tensor weights;  // [N, routed] stat
  Tensor count;    // [1] int32 or absent
  Cost cost() const;
};
void RunOnCpu(const ExpertWeights& operation, CpuStream& stream);

// How many rows chose each expert: of this call, added to a running total, and by sequence.
struct CountExperts {
  static constexpr std::string_view kName = "count_experts";
  Tensor experts;          // [N, routed] int32
  Tensor count;            // [1] int32 or absent
  Tensor counts;           // [E] int32
  Tensor total;            // [E] stat, +=; or absent
  Tensor sequence_counts;  // [B, E] stat, or absent
  int64_t first_row = 0;
  int64_t sequence_rows = 0;  // used with sequence_counts alone
  Cost cost() const;
};
void RunOnCpu(const CountExperts& operation, CpuStream& stream);

// The balance loss of the rows balance_begin to balance_end - 1 of this call; -1 is N. A row whose
// scores are all 0 adds nothing.
struct BalanceLoss {
  static constexpr std::string_view kName = "balance_loss";
  Tensor scores;           // [N, E] stat
  Tensor sequence_counts;  // [B, E] stat: of whole sequences, on all ranks
  int64_t routed = 0;
  int64_t first_row = 0;
  int64_t sequence_rows = 0;
  double weight = 0;  // of a row: coefficient / (sequences of the global batch * sequence_rows)
  Tensor loss;        // [1] float64, += weight * sum_i sum_e f_e score_ie / sum_e' score_ie'
  int64_t balance_begin = 0;
  int64_t balance_end = -1;
  Cost cost() const;
};
void RunOnCpu(const BalanceLoss& operation, CpuStream& stream);

// The gradient of the router's logits: through the weights of ExpertWeights, plus that of
// BalanceLoss with balance_weight for its weight and f_e constant; then through the scoring.
struct ExpertLogitGradient {
  static constexpr std::string_view kName = "expert_logit_gradient";
  Scoring scoring = Scoring::kSigmoid;
  Tensor scores;           // [N, E] stat
  Tensor experts;          // [N, routed] int32
  Tensor weights;          // [N, routed] stat
  Tensor d_weights;        // [N, routed] stat, or absent for 0
  Tensor sequence_counts;  // [B, E] stat; may be absent when balance_weight is 0
  int64_t routed = 0;
  int64_t first_row = 0;
  int64_t sequence_rows = 0;
  double balance_weight = 0;
  Tensor d_logits;  // [N, E] stat
  Tensor count;     // [1] int32 or absent
  int64_t balance_begin = 0;
  int64_t balance_end = -1;
  Cost cost() const;
};
void RunOnCpu(const ExpertLogitGradient& operation, CpuStream& stream);

// How evenly rows fall to experts: the largest count over the mean, less 1 (0 when all counts are
// 0), and the entropy of the counts' shares over log(E) (1 is even; 1 when E is 1 or all counts are
// 0).
struct ExpertLoad {
  static constexpr std::string_view kName = "expert_load";
  Tensor counts;     // [E] stat
  Tensor violation;  // [1] float64
  Tensor entropy;    // [1] float64
  Cost cost() const;
};
void RunOnCpu(const ExpertLoad& operation, CpuStream& stream);

}  // namespace fathom
