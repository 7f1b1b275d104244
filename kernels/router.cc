#include "kernels/router.h"

#include "kernels/cost.h"

namespace fathom {

// The router's dot products are matrix FLOPs: they count in the utilisation of a model.
Cost RouterLogits::cost() const {
  return {.matrix_flops = 2.0 * x.elements(), .bytes = OperandBytes({x, w, s})};
}

Cost AdjustLogits::cost() const {
  return {.vector_flops = 2.0 * z.elements(), .bytes = OperandBytes({s, counts, z})};
}

Cost SelectTopK::cost() const {
  return {.vector_flops = 4.0 * z.elements(), .bytes = OperandBytes({z, index})};
}

Cost SelectThreshold::cost() const {
  return {.vector_flops = 1.0 * value.elements(), .bytes = OperandBytes({value, index, count})};
}

Cost DescribeSelection::cost() const {
  return {.vector_flops = 1.0 * index.elements(),
          .bytes = OperandBytes({index, positions, borders, segments}) +
                   index.elements() * (2.0 * SizeOf(counts.dtype()) + sizeof(int32_t))};
}

Cost RouterLoss::cost() const {
  return {.vector_flops = 20.0 * u.elements(), .bytes = OperandBytes({u, index, loss})};
}

Cost RouterLogitGradient::cost() const {
  return {.vector_flops = 12.0 * u.elements(), .bytes = OperandBytes({u, index, dz, ds})};
}

Cost RouterBackward::cost() const {
  return {.matrix_flops = 4.0 * x.elements(), .bytes = OperandBytes({ds, x, w, dx, dw})};
}

}  // namespace fathom
