#include "parallel/data/owners.h"

#include <algorithm>
#include <numeric>
#include <random>

#include "gtest/gtest.h"

namespace fathom {
namespace {

TEST(OwnersTest, NewtonSchulzFlops) {
  // 2 x 3: two products of 2*2*3 multiply-adds and one of 2*2*2, two FLOPs each.
  EXPECT_EQ(NewtonSchulzFlops(2, 3, 1), 2 * (12 + 12 + 8));
  EXPECT_EQ(NewtonSchulzFlops(3, 2, 5), 5 * 64);
  EXPECT_EQ(NewtonSchulzFlops(1, 1, 1), 6);
}

TEST(OwnersTest, MostExpensiveFirst) {
  EXPECT_EQ(AssignOwners({3, 5, 4, 1, 2, 3}, 2), (std::vector<int>{1, 0, 1, 0, 1, 0}));
  EXPECT_EQ(AssignOwners({1, 1, 1, 1, 1}, 3), (std::vector<int>{0, 1, 2, 0, 1}));
  EXPECT_EQ(AssignOwners({7}, 3), (std::vector<int>{0}));
  EXPECT_EQ(AssignOwners({7, 1, 1, 1}, 2), (std::vector<int>{0, 1, 1, 1}));
  EXPECT_EQ(AssignOwners({}, 2), (std::vector<int>{}));
}

// Against the best assignment, by trying all of them.
TEST(OwnersTest, WithinTheBoundOfTheBest) {
  std::mt19937 random(5);
  const auto largest_load = [](const std::vector<double>& costs, const std::vector<int>& owners,
                               int ranks) {
    std::vector<double> loads(ranks, 0);
    for (size_t i = 0; i < costs.size(); ++i) loads[owners[i]] += costs[i];
    return *std::max_element(loads.begin(), loads.end());
  };
  for (int trial = 0; trial < 30; ++trial) {
    const int ranks = 2 + trial % 2;
    std::vector<double> costs(7);
    for (double& cost : costs) cost = 1 + random() % 50;
    double best = std::accumulate(costs.begin(), costs.end(), 0.0);
    std::vector<int> owners(costs.size(), 0);
    for (bool more = true; more;) {
      best = std::min(best, largest_load(costs, owners, ranks));
      size_t digit = 0;
      while (digit < owners.size() && ++owners[digit] == ranks) owners[digit++] = 0;
      more = digit < owners.size();
    }
    EXPECT_LE(largest_load(costs, AssignOwners(costs, ranks), ranks),
              (4.0 / 3 - 1.0 / (3 * ranks)) * best);
  }
}

}  // namespace
}  // namespace fathom
