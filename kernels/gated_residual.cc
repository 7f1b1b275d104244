#include "kernels/gated_residual.h"

#include "kernels/cost.h"

namespace fathom {

Cost GatedResidual::cost() const {
  return {.vector_flops = (gate == Gate::kNone ? 2.0 : 3.0) * x.elements(),
          .bytes = OperandBytes({x, a, f, index}) + 1.0 * x.bytes()};
}

Cost GatedResidualBackward::cost() const {
  return {.vector_flops = (gate == Gate::kNone ? 0.0 : 4.0) * d_f.elements(),
          .bytes = OperandBytes({index, a, f, d_x, d_f, dz}) + 1.0 * d_f.bytes()};
}

}  // namespace fathom
