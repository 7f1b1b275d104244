#include "parallel/data/buckets.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "core/check.h"

namespace fathom {

absl::StatusOr<std::vector<GradientBucket>> MakeBuckets(const std::vector<NamedSize>& tensors,
                                                        int64_t limit) {
  if (limit < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("the bucket limit is ", limit, " elements, but it must be 1 or more"));
  }
  std::vector<GradientBucket> buckets;
  for (int i = 0; i < static_cast<int>(tensors.size()); ++i) {
    const int64_t elements = tensors[i].elements;
    if (buckets.empty() || buckets.back().elements + elements > limit) buckets.push_back({i, i, 0});
    buckets.back().end = i + 1;
    buckets.back().elements += elements;
  }
  return buckets;
}

double NewtonSchulzFlops(int64_t rows, int64_t cols, int64_t steps) {
  const double m = static_cast<double>(std::min(rows, cols));
  const double n = static_cast<double>(std::max(rows, cols));
  return static_cast<double>(steps) * (4 * m * m * n + 2 * m * m * m);
}

std::vector<int> AssignOwners(const std::vector<double>& costs, int ranks) {
  FATHOM_CHECK(ranks >= 1);
  std::vector<int> order(costs.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return costs[a] > costs[b]; });
  std::vector<double> loads(ranks, 0);
  std::vector<int> owners(costs.size());
  for (const int item : order) {
    const auto least = std::min_element(loads.begin(), loads.end());
    owners[item] = static_cast<int>(least - loads.begin());
    *least += costs[item];
  }
  return owners;
}

OwnedLayout LayOutByOwner(const std::vector<NamedSize>& tensors, const std::vector<int>& owners,
                          int ranks) {
  FATHOM_CHECK_EQ(tensors.size(), owners.size());
  OwnedLayout layout{.offsets = std::vector<int64_t>(tensors.size()),
                     .counts = std::vector<int64_t>(ranks, 0)};
  int64_t next = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (owners[i] != rank) continue;
      layout.offsets[i] = next;
      layout.counts[rank] += tensors[i].elements;
      next += tensors[i].elements;
    }
  }
  return layout;
}

ElementRange FlatShard(int64_t total, int ranks, int rank) {
  FATHOM_CHECK(ranks >= 1 && rank >= 0 && rank < ranks) << "rank " << rank << " of " << ranks;
  const int64_t each = total / ranks;
  const int64_t more = total % ranks;
  const int64_t begin = rank * each + std::min<int64_t>(rank, more);
  return {begin, begin + each + (rank < more ? 1 : 0)};
}

std::vector<TensorSlice> SlicesOf(const std::vector<NamedSize>& tensors,
                                  const ElementRange& range) {
  std::vector<TensorSlice> slices;
  int64_t start = 0;  // of the tensor in the list of all elements
  for (int i = 0; i < static_cast<int>(tensors.size()); ++i) {
    const int64_t begin = std::max(range.begin, start);
    const int64_t end = std::min(range.end, start + tensors[i].elements);
    if (begin < end) slices.push_back({i, {begin - start, end - start}});
    start += tensors[i].elements;
  }
  return slices;
}

}  // namespace fathom
