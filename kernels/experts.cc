#include "kernels/experts.h"

#include "kernels/cost.h"

namespace fathom {

Cost ExpertScores::cost() const {
  return {.vector_flops = 20.0 * scores.elements(), .bytes = OperandBytes({logits, scores})};
}

Cost SelectExperts::cost() const {
  return {.vector_flops = 4.0 * scores.elements(), .bytes = OperandBytes({scores, bias, experts})};
}

// Of the scores only those of the chosen experts are read.
Cost ExpertWeights::cost() const {
  return {.vector_flops = 2.0 * weights.elements(),
          .bytes = OperandBytes({experts, weights}) + weights.bytes()};
}

Cost CountExperts::cost() const {
  return {.vector_flops = 1.0 * experts.elements(),
          .bytes = OperandBytes({experts, counts, total, sequence_counts})};
}

Cost BalanceLoss::cost() const {
  return {.vector_flops = 3.0 * scores.elements(),
          .bytes = OperandBytes({scores, sequence_counts, loss})};
}

Cost ExpertLogitGradient::cost() const {
  return {.vector_flops = 8.0 * scores.elements(),
          .bytes = OperandBytes({scores, experts, weights, d_weights, sequence_counts, d_logits})};
}

Cost ExpertLoad::cost() const {
  return {.vector_flops = 20.0 * counts.elements(),
          .bytes = OperandBytes({counts, violation, entropy})};
}

}  // namespace fathom
