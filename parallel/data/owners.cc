#include "parallel/data/owners.h"

#include <algorithm>
#include <numeric>

#include "core/check.h"

namespace fathom {

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

}  // namespace fathom
