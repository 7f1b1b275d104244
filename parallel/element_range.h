#pragma once

#include <algorithm>
#include <cstdint>

namespace fathom {

// Elements begin to end - 1 of something that is counted, such as a flattened tensor.
struct ElementRange {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t size() const { return end - begin; }
  bool operator==(const ElementRange&) const = default;
};

// Rank `rank`'s part of `total` elements cut into contiguous ranges of nearly equal size: the first
// total % ranks of them hold one more, as in EvenCounts.
inline ElementRange FlatShard(int64_t total, int ranks, int rank) {
  const int64_t size = total / ranks;
  const int64_t larger = total % ranks;
  const int64_t begin = rank * size + std::min<int64_t>(rank, larger);
  return {begin, begin + size + (rank < larger ? 1 : 0)};
}

}  // namespace fathom
