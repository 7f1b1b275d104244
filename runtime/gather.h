#pragma once

#include <deque>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "parallel/rank_groups.h"
#include "runtime/checkpoint/named_array.h"
#include "runtime/model/tensor_part.h"

namespace fathom {

// Whole tensors in host memory, in the form that files are written from.
class HostTensors {
 public:
  // Memory for one more; its array is valid while this object lives.
  char* Add(const std::string& name, DType dtype, const Shape& shape);
  const std::vector<NamedArray>& arrays() const { return arrays_; }

 private:
  std::deque<std::vector<char>> storage_;
  std::vector<NamedArray> arrays_;
};

// Elements `range` of a part of a tensor.
struct TensorPiece {
  std::string name;
  Shape whole;  // of the tensor
  TensorPart part;
  ElementRange range;  // of the part's elements, row-major
  Tensor data;         // contiguous, range.size() elements
};

// Makes tensors whole on rank 0 from pieces that the ranks have, of which those of one tensor cover
// it without overlap. Called by all ranks, each with its own pieces; tensors travel one at a time.
// `out` is left alone on the other ranks. Tensors come out in the order of the pieces on one rank,
// by name with several. Errors are those of the communicators.
absl::Status GatherTensors(const std::vector<TensorPiece>& pieces, RankGroups& groups,
                           Stream& stream, HostTensors* out);

}  // namespace fathom
