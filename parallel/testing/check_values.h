#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/cpu_device.h"
#include "parallel/counts.h"

// Values that the checks of communicators send around. Used by those only.
namespace fathom {

// Lengths around the chunk limit of 1,000 elements that tests set, and around nothing.
inline constexpr int64_t kLengths[] = {0, 1, 17, 999, 1000, 1001, 2500};

template <class T>
Tensor View(std::vector<T>& values) {
  return Tensor(values.data(), DTypeOf<T>, {static_cast<int64_t>(values.size())});
}

// A host stream of one rank.
class Rank {
 public:
  Rank() : device_(1), stream_(device_.NewStream()) {}
  Stream& stream() { return *stream_; }

 private:
  CpuDevice device_;
  std::unique_ptr<Stream> stream_;
};

// A value that depends on rank and place, whose sums are exact in every dtype and order.
template <class T>
T ValueOf(int rank, int64_t i) {
  return static_cast<T>((i * 7 + rank * 3) % 23 - 11);
}

template <class T>
std::vector<T> ValuesOf(int rank, int64_t begin, int64_t count) {
  std::vector<T> values(count);
  for (int64_t i = 0; i < count; ++i) values[i] = ValueOf<T>(rank, begin + i);
  return values;
}

template <class T>
std::vector<T> SumsOf(int ranks, int64_t begin, int64_t count) {
  std::vector<T> sums(count, 0);
  for (int r = 0; r < ranks; ++r) {
    for (int64_t i = 0; i < count; ++i) sums[i] += ValueOf<T>(r, begin + i);
  }
  return sums;
}

// Different for each rank, with zeros among them.
inline std::vector<int64_t> UnevenCounts(int ranks, int64_t scale) {
  std::vector<int64_t> counts(ranks);
  for (int r = 0; r < ranks; ++r) counts[r] = r % 3 == 1 ? 0 : scale + r;
  return counts;
}

inline int64_t Sum(const std::vector<int64_t>& counts) { return Offsets(counts).back(); }

}  // namespace fathom
