#include "kernels/rotary.h"

#include "kernels/cost.h"

namespace fathom {

Cost HeadNormRotary::cost() const {
  return {.vector_flops = 7.0 * y.elements(),
          .bytes = OperandBytes({x, weight, positions, y, rstd})};
}

Cost HeadNormRotaryBackward::cost() const {
  return {.vector_flops = 14.0 * dy.elements(),
          .bytes = OperandBytes({x, weight, positions, rstd, dy, dx, dweight})};
}

Cost RotaryTables::cost() const {
  return {.vector_flops = 40.0 * cosine.elements(), .bytes = OperandBytes({cosine, sine})};
}

}  // namespace fathom
