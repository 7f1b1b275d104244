#include "kernels/attention.h"

#include "kernels/cost.h"

namespace fathom {

// Two products forward (scores, values) and four backward; the scores that backward computes once
// more are not counted.
Cost Attention::cost() const {
  const double h = static_cast<double>(q.dim(1)) / heads;
  return {.matrix_flops = 4.0 * heads * h * pairs,
          .vector_flops = 6.0 * heads * pairs,
          .bytes = OperandBytes({q, k, v, segments, o, lse})};
}

Cost AttentionBackward::cost() const {
  const double h = static_cast<double>(q.dim(1)) / heads;
  return {.matrix_flops = 8.0 * heads * h * pairs,
          .vector_flops = 8.0 * heads * pairs,
          .bytes = OperandBytes({q, k, v, segments, o, lse, d_o, dq, dk, dv})};
}

}  // namespace fathom
