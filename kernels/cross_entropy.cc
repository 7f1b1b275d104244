#include "kernels/cross_entropy.h"

#include "kernels/cost.h"

namespace fathom {

Cost CrossEntropy::cost() const {
  return {.vector_flops = (d_logits.absent() ? 3.0 : 6.0) * logits.elements(),
          .bytes = OperandBytes({logits, labels, d_logits, losses})};
}

}  // namespace fathom
