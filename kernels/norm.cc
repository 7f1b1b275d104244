#include "kernels/norm.h"

#include "kernels/cost.h"

namespace fathom {

Cost RmsNorm::cost() const {
  return {.vector_flops = (addend.absent() ? 4.0 : 5.0) * y.elements(),
          .bytes = OperandBytes({index, addend, weight, sum, y, rstd}) + 1.0 * y.bytes()};
}

Cost RmsNormBackward::cost() const {
  return {
      .vector_flops = 12.0 * dy.elements(),
      .bytes = OperandBytes({x, addend, weight, rstd, dy, base, dx_index, base2, dx2, dweight}) +
               1.0 * dy.bytes()};
}

}  // namespace fathom
