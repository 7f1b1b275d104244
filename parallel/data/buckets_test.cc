#include "parallel/data/buckets.h"

#include <algorithm>
#include <numeric>
#include <random>

#include "gtest/gtest.h"

namespace fathom {
namespace {

std::vector<NamedSize> Sizes(const std::vector<int64_t>& elements) {
  std::vector<NamedSize> sizes;
  for (const int64_t count : elements) sizes.push_back({std::to_string(sizes.size()), count});
  return sizes;
}

std::vector<GradientBucket> Buckets(const std::vector<int64_t>& elements, int64_t limit) {
  auto buckets = MakeBuckets(Sizes(elements), limit);
  EXPECT_TRUE(buckets.ok()) << buckets.status();
  return *buckets;
}

TEST(BucketsTest, FillUpToTheLimit) {
  using List = std::vector<GradientBucket>;
  EXPECT_EQ(Buckets({4, 6, 1, 9, 2}, 10), (List{{0, 2, 10}, {2, 4, 10}, {4, 5, 2}}));
  EXPECT_EQ(Buckets({4, 7, 1}, 10), (List{{0, 1, 4}, {1, 3, 8}}));
  EXPECT_EQ(Buckets({3, 25, 3, 3}, 10), (List{{0, 1, 3}, {1, 2, 25}, {2, 4, 6}}));
  EXPECT_EQ(Buckets({25, 0, 1}, 10), (List{{0, 1, 25}, {1, 3, 1}}));
  EXPECT_EQ(Buckets({}, 10), List{});
  EXPECT_EQ(Buckets({int64_t{1} << 31, 8}, int64_t{1} << 40),
            (List{{0, 2, (int64_t{1} << 31) + 8}}));
}

TEST(BucketsTest, LimitMustBePositive) {
  EXPECT_EQ(std::string(MakeBuckets(Sizes({1}), 0).status().message()),
            "the bucket limit is 0 elements, but it must be 1 or more");
}

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

TEST(OwnersTest, LayoutIsOrderedByOwner) {
  const OwnedLayout layout = LayOutByOwner(Sizes({10, 20, 30, 40, 50}), {2, 0, 2, 0, 1}, 4);
  EXPECT_EQ(layout.offsets, (std::vector<int64_t>{110, 0, 120, 20, 60}));
  EXPECT_EQ(layout.counts, (std::vector<int64_t>{60, 50, 40, 0}));
}

TEST(ShardsTest, FlatShards) {
  EXPECT_EQ(FlatShard(10, 4, 0), (ElementRange{0, 3}));
  EXPECT_EQ(FlatShard(10, 4, 1), (ElementRange{3, 6}));
  EXPECT_EQ(FlatShard(10, 4, 2), (ElementRange{6, 8}));
  EXPECT_EQ(FlatShard(10, 4, 3), (ElementRange{8, 10}));
  EXPECT_EQ(FlatShard(1, 3, 2), (ElementRange{1, 1}));
  const int64_t billions = (int64_t{1} << 31) + 8;
  EXPECT_EQ(FlatShard(billions, 3, 2), (ElementRange{1431655771, billions}));
}

TEST(ShardsTest, SlicesOfTensors) {
  const std::vector<NamedSize> tensors = Sizes({4, 0, 3, 5});
  using List = std::vector<TensorSlice>;
  EXPECT_EQ(SlicesOf(tensors, {0, 4}), (List{{0, {0, 4}}}));
  EXPECT_EQ(SlicesOf(tensors, {2, 9}), (List{{0, {2, 4}}, {2, {0, 3}}, {3, {0, 2}}}));
  EXPECT_EQ(SlicesOf(tensors, {5, 6}), (List{{2, {1, 2}}}));
  EXPECT_EQ(SlicesOf(tensors, {5, 5}), List{});
}

// All ranks' slices together are every element of every tensor once.
TEST(ShardsTest, ShardsCoverAllTensors) {
  const std::vector<NamedSize> tensors = Sizes({7, 1, 64, 0, 13, 1, 1, 100});
  for (const int ranks : {1, 2, 3, 8, 200}) {
    std::vector<std::vector<int>> seen;
    int64_t total = 0;
    for (const NamedSize& tensor : tensors) {
      seen.emplace_back(tensor.elements, 0);
      total += tensor.elements;
    }
    for (int rank = 0; rank < ranks; ++rank) {
      for (const TensorSlice& slice : SlicesOf(tensors, FlatShard(total, ranks, rank))) {
        for (int64_t i = slice.range.begin; i < slice.range.end; ++i) ++seen[slice.tensor][i];
      }
    }
    for (size_t i = 0; i < tensors.size(); ++i) {
      EXPECT_EQ(seen[i], std::vector<int>(tensors[i].elements, 1)) << ranks << " ranks";
    }
  }
}

}  // namespace
}  // namespace fathom
