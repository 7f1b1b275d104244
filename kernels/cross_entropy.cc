#include "kernels/cross_entropy.h"

#include "kernels/cost.h"

namespace fathom {

Cost CrossEntropy::cost() const {
  return {.vector_flops = (gradient ? 6.0 : 3.0) * logits.elements(),
          .bytes = OperandBytes({logits, labels, losses})};
}

}  // namespace fathom
