#include "kernels/swiglu.h"

#include "kernels/cost.h"

namespace fathom {

Cost SwiGlu::cost() const {
  return {.vector_flops = 5.0 * y.elements(), .bytes = OperandBytes({gate_up, y})};
}

Cost SwiGluBackward::cost() const {
  return {.vector_flops = 12.0 * y.elements(), .bytes = OperandBytes({gate_up, dy, d_gate_up, y})};
}

}  // namespace fathom
