#include "parallel/pipeline/partition.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <random>

#include "core/plan.h"
#include "gtest/gtest.h"

namespace fathom {
namespace {

std::vector<LayerRange> Partition(const PartitionCosts& costs, int parts) {
  auto ranges = PartitionLayers(costs, parts);
  EXPECT_TRUE(ranges.ok()) << ranges.status();
  return *ranges;
}

double Largest(const std::vector<double>& costs) {
  return *std::max_element(costs.begin(), costs.end());
}

double SumOfSquares(const std::vector<double>& costs) {
  double sum = 0;
  for (const double cost : costs) sum += cost * cost;
  return sum;
}

// Layer ids of all parts are 0 to layers - 1 once each, and no part is empty.
void ExpectCover(const std::vector<LayerRange>& ranges, int64_t layers) {
  int64_t next = 0;
  for (const LayerRange& range : ranges) {
    EXPECT_GT(range.size(), 0);
    for (int64_t layer = range.begin; layer < range.end; ++layer) EXPECT_EQ(layer, next++);
  }
  EXPECT_EQ(next, layers);
}

TEST(PartitionTest, SmallCases) {
  using List = std::vector<LayerRange>;
  EXPECT_EQ(Partition({.layers = {1, 1, 1, 1}}, 2), (List{{0, 2}, {2, 4}}));
  EXPECT_EQ(Partition({.layers = {1, 1, 1, 1, 4}}, 2), (List{{0, 4}, {4, 5}}));
  EXPECT_EQ(Partition({.layers = {1, 1, 1, 1}, .last_extra = 2}, 2), (List{{0, 3}, {3, 4}}));
  EXPECT_EQ(Partition({.layers = {1, 1, 1, 1}, .first_extra = 2}, 2), (List{{0, 1}, {1, 4}}));
  EXPECT_EQ(Partition({.layers = {0, 0, 9}}, 3), (List{{0, 1}, {1, 2}, {2, 3}}));
  EXPECT_EQ(Partition({.layers = {5, 1}, .first_extra = 3, .last_extra = 7}, 1), (List{{0, 2}}));
  // The most expensive part is 4 in any case: the rest is evened out.
  EXPECT_EQ(Partition({.layers = {4, 1, 1, 1, 1}}, 3), (List{{0, 1}, {1, 3}, {3, 5}}));
}

// Against all cuts there are. Costs are small integers, so that sums are exact and ties occur.
TEST(PartitionTest, BestOfAllCuts) {
  std::mt19937 random(11);
  for (int trial = 0; trial < 200; ++trial) {
    const int layers = 1 + random() % 9;
    const int parts = 1 + random() % std::min(layers, 4);
    PartitionCosts costs{.first_extra = static_cast<double>(random() % 4),
                         .last_extra = static_cast<double>(random() % 8)};
    for (int i = 0; i < layers; ++i) costs.layers.push_back(random() % 6);
    double best_largest = std::numeric_limits<double>::infinity();
    double best_squares = best_largest;
    std::vector<LayerRange> ranges;
    const std::function<void(int64_t, int)> try_all = [&](int64_t begin, int left) {
      if (left == 0) {
        if (begin != layers) return;
        const std::vector<double> sums = CostsOf(costs, ranges);
        const std::pair<double, double> value = {Largest(sums), SumOfSquares(sums)};
        if (value < std::pair(best_largest, best_squares)) {
          std::tie(best_largest, best_squares) = value;
        }
        return;
      }
      for (int64_t end = begin + 1; end <= layers; ++end) {
        ranges.push_back({begin, end});
        try_all(end, left - 1);
        ranges.pop_back();
      }
    };
    try_all(0, parts);
    const std::vector<LayerRange> cut = Partition(costs, parts);
    ExpectCover(cut, layers);
    const std::vector<double> sums = CostsOf(costs, cut);
    EXPECT_EQ(Largest(sums), best_largest);
    EXPECT_EQ(SumOfSquares(sums), best_squares);
  }
}

// X-MoD A3K16: 4 dense layers, then 6 times 48 sparse layers and an anchor.
PartitionCosts LongPlan() {
  const PlanSegment dense{.repeat = 1, .layer = {LayerKind::kDense, 1}};
  const PlanSegment sparse{.repeat = 48, .layer = {LayerKind::kSparse, 16}};
  PlanSegment prefix = dense;
  prefix.repeat = 4;
  const LayerPlan plan = MakeLayerPlan({prefix, {.repeat = 6, .group = {sparse, dense}}}, 0);
  PartitionCosts costs{.first_extra = 0.25, .last_extra = 1.5};
  for (const PlannedLayer& layer : plan.layers) {
    costs.layers.push_back(1.0 / static_cast<double>(layer.spec.sparsity));
  }
  return costs;
}

// Whether parts no more expensive than `limit` exist: each takes as many layers as it can, at least
// one, and leaves one for each of the later ones.
bool Fits(const PartitionCosts& costs, int parts, double limit) {
  const size_t layers = costs.layers.size();
  size_t next = 0;
  for (int part = 0; part < parts; ++part) {
    const size_t later = parts - 1 - part;
    double sum = (part == 0 ? costs.first_extra : 0) + (later == 0 ? costs.last_extra : 0);
    sum += costs.layers[next++];
    if (sum > limit) return false;
    while (next + later < layers && sum + costs.layers[next] <= limit) sum += costs.layers[next++];
  }
  return next == layers;
}

TEST(PartitionTest, LongPlanIsCutOnceEach) {
  const PartitionCosts costs = LongPlan();
  ASSERT_EQ(costs.layers.size(), 298u);
  for (const int parts : {2, 3, 4, 5, 7, 8, 16, 298}) {
    const std::vector<LayerRange> ranges = Partition(costs, parts);
    ASSERT_EQ(static_cast<int>(ranges.size()), parts);
    ExpectCover(ranges, 298);
    const double largest = Largest(CostsOf(costs, ranges));  // multiples of 1/16: exact
    EXPECT_TRUE(Fits(costs, parts, largest));
    EXPECT_FALSE(Fits(costs, parts, largest - 1.0 / 32)) << parts << " parts";
  }
}

TEST(PartitionTest, RefusesWhatCannotBeCut) {
  EXPECT_EQ(std::string(PartitionLayers({.layers = {1, 2}}, 3).status().message()),
            "2 layers cannot be cut into 3 parts: there must be at least one part and one layer "
            "for each");
  EXPECT_FALSE(PartitionLayers({.layers = {1, 2}}, 0).ok());
  EXPECT_EQ(std::string(PartitionLayers({.layers = {1, -2}}, 1).status().message()),
            "a layer's cost is -2, but it must be 0 or more, and finite");
}

}  // namespace
}  // namespace fathom
