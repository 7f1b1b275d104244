#include "kernels/cross_entropy.h"

#include "kernels/cost.h"

namespace fathom {

Cost CrossEntropy::cost() const {
  return {.vector_flops = (d_logits.absent() ? 3.0 : 6.0) * logits.elements(),
          .bytes = OperandBytes({logits, labels, d_logits, losses})};
}

Cost ShardMaximum::cost() const {
  return {.vector_flops = 1.0 * logits.elements(), .bytes = OperandBytes({logits, maximum})};
}

Cost ShardSums::cost() const {
  return {.vector_flops = 2.0 * logits.elements(),
          .bytes = OperandBytes({logits, labels, maximum, sums})};
}

Cost ShardCrossEntropy::cost() const {
  Cost cost{.bytes = OperandBytes({labels, sums, losses})};
  if (!d_logits.absent()) {
    cost += {.vector_flops = 3.0 * d_logits.elements(),
             .bytes = OperandBytes({logits, maximum, d_logits})};
  }
  return cost;
}

}  // namespace fathom
