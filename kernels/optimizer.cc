#include "kernels/optimizer.h"

#include "kernels/cost.h"

namespace fathom {

Cost PrepareStep::cost() const {
  return {.vector_flops = 8, .bytes = OperandBytes({squared_norm, loss, step})};
}

Cost AdamW::cost() const {
  return {.vector_flops = 16.0 * weight.elements(),
          .bytes = OperandBytes({gradient, first, second, weight})};
}

Cost MuonMomentum::cost() const {
  return {.vector_flops = 5.0 * momentum.elements(),
          .bytes = OperandBytes({gradient, momentum, direction})};
}

Cost NormalizeMatrices::cost() const {
  return {.vector_flops = 3.0 * x.elements(), .bytes = OperandBytes({x})};
}

Cost MuonApply::cost() const {
  return {.vector_flops = 3.0 * weight.elements(), .bytes = OperandBytes({direction, weight})};
}

Cost UpdateExpertBias::cost() const {
  return {.vector_flops = 3.0 * bias.elements(), .bytes = OperandBytes({counts, bias})};
}

}  // namespace fathom
