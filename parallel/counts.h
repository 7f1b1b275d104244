#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

// How many elements go where. All arithmetic is in 64 bits.
namespace fathom {

// `total` elements over `ranks`: the first total % ranks of them hold one more.
inline std::vector<int64_t> EvenCounts(int64_t total, int ranks) {
  std::vector<int64_t> counts(ranks, total / ranks);
  std::fill_n(counts.begin(), total % ranks, total / ranks + 1);
  return counts;
}

// Where each slice begins: the sums of the counts before it, and the total at the end.
inline std::vector<int64_t> Offsets(const std::vector<int64_t>& counts) {
  std::vector<int64_t> offsets(counts.size() + 1, 0);
  for (size_t i = 0; i < counts.size(); ++i) offsets[i + 1] = offsets[i] + counts[i];
  return offsets;
}

// Calls function(begin, count) for consecutive pieces of at most `limit` elements that cover 0 to
// `elements`. `limit` is at least 1.
template <class Function>
void ForEachChunk(int64_t elements, int64_t limit, Function function) {
  for (int64_t begin = 0; begin < elements; begin += limit) {
    function(begin, std::min(limit, elements - begin));
  }
}

}  // namespace fathom
