#pragma once

#include <algorithm>
#include <cstdint>

#include "core/tensor.h"
#include "parallel/element_range.h"

namespace fathom {

// The part of a tensor that a rank holds: all of it, or rows (dim 0) or columns (dim 1) begin to
// end - 1, the other ranks of its tensor group holding the rest.
struct TensorPart {
  int dim = -1;
  int64_t begin = 0;
  int64_t end = 0;

  bool whole() const { return dim < 0; }
  Shape ShapeOf(const Shape& tensor) const {
    if (whole()) return tensor;
    Shape shape;
    for (int i = 0; i < tensor.rank(); ++i) shape.Append(i == dim ? end - begin : tensor[i]);
    return shape;
  }
};

// Calls visit(first element in the whole row-major tensor, first element counted from the start of
// `range`, number of elements) for the contiguous runs that elements `range` of a part make up.
template <class Visit>
void VisitRuns(const Shape& tensor, const TensorPart& part, const ElementRange& range,
               Visit visit) {
  if (part.dim != 1) {
    const int64_t first = part.whole() ? 0 : part.begin * (tensor.elements() / tensor[0]);
    visit(first + range.begin, int64_t{0}, range.size());
    return;
  }
  const int64_t columns = part.end - part.begin;
  for (int64_t i = range.begin; i < range.end;) {
    const int64_t row = i / columns;
    const int64_t column = i % columns;
    const int64_t count = std::min(columns - column, range.end - i);
    visit(row * tensor[1] + part.begin + column, i - range.begin, count);
    i += count;
  }
}

}  // namespace fathom
