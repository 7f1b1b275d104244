#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/tensor.h"
#include "parallel/element_range.h"
#include "runtime/model/tensor_part.h"

namespace fathom {

// Some elements of a tensor: `range` of the row-major elements of one of its parts.
struct TensorSlice {
  TensorPart part;
  ElementRange range;

  // All of a tensor.
  static TensorSlice Whole(const Shape& tensor) { return {{}, {0, tensor.elements()}}; }
  int64_t elements() const { return range.size(); }
};

// Elements that are contiguous in a tensor and in a slice of it.
struct SliceRun {
  int64_t in_tensor;  // the first one, in the row-major tensor
  int64_t in_slice;   // the same, from the beginning of the slice
  int64_t count;
};

// The runs of a slice in the order of the tensor.
inline std::vector<SliceRun> RunsOf(const Shape& tensor, const TensorSlice& slice) {
  std::vector<SliceRun> runs;
  if (slice.range.size() <= 0) return runs;
  VisitRuns(tensor, slice.part, slice.range,
            [&](int64_t in_tensor, int64_t in_slice, int64_t count) {
              runs.push_back({in_tensor, in_slice, count});
            });
  return runs;
}

// Calls visit(first element in slice a, first element in slice b, number of elements) for what two
// slices of one tensor have in common, given by their runs.
template <class Visit>
void VisitOverlap(const std::vector<SliceRun>& a, const std::vector<SliceRun>& b, Visit visit) {
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    const int64_t begin = std::max(a[i].in_tensor, b[j].in_tensor);
    const int64_t end_a = a[i].in_tensor + a[i].count;
    const int64_t end_b = b[j].in_tensor + b[j].count;
    const int64_t count = std::min(end_a, end_b) - begin;
    if (count > 0) {
      visit(a[i].in_slice + begin - a[i].in_tensor, b[j].in_slice + begin - b[j].in_tensor, count);
    }
    if (end_a <= end_b) {
      ++i;
    } else {
      ++j;
    }
  }
}

}  // namespace fathom
