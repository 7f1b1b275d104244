#include "kernels/expert_rows.h"

#include "kernels/cost.h"

namespace fathom {

Cost SortByExpert::cost() const {
  return {.vector_flops = 2.0 * experts.elements(), .bytes = OperandBytes({experts, row, slot})};
}

Cost CombineExperts::cost() const {
  return {.vector_flops = 2.0 * x.elements(), .bytes = OperandBytes({x, slot, weights, y})};
}

Cost CombineExpertsBackward::cost() const {
  const bool weighs = !d_weights.absent();
  return {.vector_flops = (weighs ? 3.0 : 1.0) * dx.elements(),
          .bytes = OperandBytes({dy, slot, weights, dx, d_weights}) + (weighs ? x.bytes() : 0)};
}

Cost RowsInWindow::cost() const { return {.bytes = OperandBytes({count, window_count})}; }

Cost ExpertMajorOrder::cost() const {
  return {.bytes = OperandBytes({counts, to_expert_major, to_source_major})};
}

}  // namespace fathom
