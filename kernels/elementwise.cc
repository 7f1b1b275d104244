#include "kernels/elementwise.h"

#include <algorithm>

#include "kernels/cost.h"

namespace fathom {

Cost Fill::cost() const { return {.bytes = OperandBytes({y})}; }

Cost Copy::cost() const { return {.bytes = OperandBytes({x, y})}; }

Cost Axpby::cost() const {
  return {.vector_flops = 3.0 * y.elements(), .bytes = OperandBytes({x, y})};
}

// Rows of the larger tensor that the index leaves out do not travel. How many rows of the index a
// window holds only the device knows: as many as fit are counted.
Cost GatherRows::cost() const {
  return {.bytes = 1.0 * y.bytes() + std::min(x.bytes(), y.bytes()) + index.bytes()};
}

Cost ScatterRows::cost() const {
  return {.bytes = 2.0 * std::min(x.bytes(), y.bytes()) + index.bytes()};
}

Cost Sum::cost() const { return {.vector_flops = 1.0 * x.elements(), .bytes = OperandBytes({x})}; }

Cost SumOfSquares::cost() const {
  return {.vector_flops = 2.0 * x.elements(), .bytes = OperandBytes({x})};
}

}  // namespace fathom
