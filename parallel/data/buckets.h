#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

// Which gradients travel together and which rank updates what. Pure arithmetic that every rank
// computes for itself, with the same result.
namespace fathom {

struct NamedSize {
  std::string name;
  int64_t elements = 0;
};

// Tensors begin to end - 1 of a list.
struct GradientBucket {
  int begin = 0;
  int end = 0;
  int64_t elements = 0;

  bool operator==(const GradientBucket&) const = default;
};

// Cuts `tensors`, which stand in the order in which backward finishes their gradients, into runs of
// at most `limit` elements; a larger tensor has a bucket of its own. A bucket can be reduced as
// soon as its last tensor is finished. InvalidArgument for a limit below 1.
absl::StatusOr<std::vector<GradientBucket>> MakeBuckets(const std::vector<NamedSize>& tensors,
                                                        int64_t limit);

// Multiply-adds, in FLOPs, of `steps` Newton-Schulz iterations on a matrix of rows x cols: with m
// the smaller and n the larger dim, each takes 2 m m n for X X^T, 2 m m m for its square and 2 m m
// n for the product with X.
double NewtonSchulzFlops(int64_t rows, int64_t cols, int64_t steps);

// The owner of each item, with costs balanced: the most expensive item first, each to the rank that
// has the least so far. Ties go to the earlier item and to the lower rank. (Graham, "Bounds on
// multiprocessing timing anomalies", 1969: at most 4/3 - 1/(3 ranks) of the best.)
std::vector<int> AssignOwners(const std::vector<double>& costs, int ranks);

// Where owned tensors stand in a buffer that is reduced to their owners with one uneven
// reduce-scatter and sent back with one uneven all-gather: ordered by owner, then as listed.
struct OwnedLayout {
  std::vector<int64_t> offsets;  // of each tensor, in elements
  std::vector<int64_t> counts;   // elements of each rank
};

OwnedLayout LayOutByOwner(const std::vector<NamedSize>& tensors, const std::vector<int>& owners,
                          int ranks);

// Elements begin to end - 1.
struct ElementRange {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t size() const { return end - begin; }

  bool operator==(const ElementRange&) const = default;
};

// Rank `rank`'s part of a list of `total` elements cut into contiguous ranges of nearly equal size:
// the first total % ranks of them hold one more.
ElementRange FlatShard(int64_t total, int ranks, int rank);

// A part of one tensor, in elements of the row-major flattened tensor.
struct TensorSlice {
  int tensor = 0;
  ElementRange range;

  bool operator==(const TensorSlice&) const = default;
};

// The parts of tensors, laid end to end as listed, that `range` covers; empty parts are left out.
std::vector<TensorSlice> SlicesOf(const std::vector<NamedSize>& tensors, const ElementRange& range);

}  // namespace fathom
