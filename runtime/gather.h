#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
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

// Makes tensors whole on rank 0, one at a time and by name, from pieces that the ranks have, of
// which those of one tensor cover it without overlap. All ranks create it; then rank 0 loads every
// array in order, while the others send. Errors are those of the communicators.
class TensorGathering {
 public:
  // `pieces` are this rank's; they, their data unchanged, and `groups` outlive the object.
  static absl::StatusOr<std::unique_ptr<TensorGathering>> Create(
      const std::vector<TensorPiece>& pieces, RankGroups& groups, Stream& stream);

  ~TensorGathering();

  // On rank 0: all tensors, without their data.
  const std::vector<NamedArray>& arrays() const { return arrays_; }
  // On rank 0: the data of array `i`, valid until the next call. For ArrayLoader.
  absl::StatusOr<const void*> Load(size_t i);
  // On the other ranks.
  absl::Status Send();

 private:
  // A piece as other ranks know it: where it belongs, without its data. Sent as it lies in memory.
  struct Header;
  struct Place {
    int rank;
    size_t piece;  // among the rank's, by name
  };

  TensorGathering(RankGroups& groups, Stream& stream);

  absl::Status ExchangeHeaders(std::vector<Header> mine);
  absl::Status FetchPiece(const Place& place, char* whole);

  RankGroups& groups_;
  Stream& stream_;
  std::vector<const TensorPiece*> pieces_;    // of this rank, by name
  std::vector<std::vector<Header>> headers_;  // by rank
  std::vector<NamedArray> arrays_;
  std::vector<std::vector<Place>> places_;  // of each array's pieces
  std::vector<char> whole_;
};

// The same into memory: `out` gets all tensors on rank 0 and is left alone on the others.
absl::Status GatherTensors(const std::vector<TensorPiece>& pieces, RankGroups& groups,
                           Stream& stream, HostTensors* out);

}  // namespace fathom
