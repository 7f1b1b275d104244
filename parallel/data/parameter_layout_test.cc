#include "parallel/data/parameter_layout.h"

#include <algorithm>

#include "gtest/gtest.h"

namespace fathom {
namespace {

// Embedding; layers of a norm, a fused pair of matrices and a third one; norm and head.
std::vector<LayoutUnit> Units(int layers) {
  std::vector<LayoutUnit> units;
  size_t next = 0;
  const auto add = [&](UnitRole role, std::vector<int64_t> elements, std::vector<Shape> matrices) {
    units.push_back({.role = role,
                     .first_parameter = next,
                     .elements = std::move(elements),
                     .matrices = std::move(matrices)});
    next += units.back().elements.size();
  };
  add(UnitRole::kTable, {1000}, {});
  for (int layer = 0; layer < layers; ++layer) {
    add(UnitRole::kVectors, {10}, {});
    add(UnitRole::kMatrices, {200, 100}, {{20, 10}, {10, 10}});
    add(UnitRole::kMatrices, {300}, {{10, 30}});
  }
  add(UnitRole::kVectors, {10}, {});
  add(UnitRole::kTable, {1000}, {});
  return units;
}

class ParameterLayoutTest : public ::testing::TestWithParam<std::tuple<int, bool>> {};

TEST_P(ParameterLayoutTest, EveryElementHasOnePlaceBucketAndOwner) {
  const auto& [data_ranks, muon] = GetParam();
  const std::vector<LayoutUnit> units = Units(6);
  const ParameterLayout layout = MakeParameterLayout(
      units, {.data_ranks = data_ranks, .tensor_ranks = 2, .muon = muon, .bucket_elements = 1500});
  std::vector<int> used(layout.elements), owned(layout.elements);
  int64_t end = 0;
  for (const ParameterBucket& bucket : layout.buckets) {
    EXPECT_EQ(bucket.elements.begin, end);
    end = bucket.elements.end;
    for (int rank = 0; rank < data_ranks; ++rank) {
      const ElementRange range = bucket.OwnedBy(rank);
      for (int64_t i = range.begin; i < range.end; ++i) ++owned[i];
    }
  }
  EXPECT_EQ(end, layout.elements);
  EXPECT_EQ(owned, std::vector<int>(layout.elements, 1));
  for (const LayoutUnit& unit : units) {
    EXPECT_EQ(layout.offsets[unit.first_parameter] % 64, 0);
    for (size_t i = 0; i < unit.elements.size(); ++i) {
      const size_t parameter = unit.first_parameter + i;
      const int64_t offset = layout.offsets[parameter];
      if (i > 0) {
        EXPECT_EQ(offset, layout.offsets[parameter - 1] + unit.elements[i - 1]);
      }
      for (int64_t k = 0; k < unit.elements[i]; ++k) ++used[offset + k];
      // A matrix lies whole in the stretch of its owner.
      const MatrixOwner& owner = layout.owners[parameter];
      EXPECT_EQ(owner.data >= 0, muon && unit.role == UnitRole::kMatrices);
      if (owner.data < 0) continue;
      EXPECT_TRUE(owner.tensor == 0 || owner.tensor == 1);
      const bool inside = std::any_of(
          layout.buckets.begin(), layout.buckets.end(), [&](const ParameterBucket& bucket) {
            const ElementRange range = bucket.OwnedBy(owner.data);
            return range.begin <= offset && offset + unit.elements[i] <= range.end;
          });
      EXPECT_TRUE(inside) << parameter;
    }
  }
  EXPECT_LE(*std::max_element(used.begin(), used.end()), 1);
}

INSTANTIATE_TEST_SUITE_P(Ranks, ParameterLayoutTest,
                         ::testing::Combine(::testing::Values(1, 2, 5), ::testing::Bool()));

// Head, layers from the last to the first, embedding, and the vectors of all layers at the end.
TEST(ParameterLayout, BucketsStandInTheOrderOfBackward) {
  const ParameterLayout layout = MakeParameterLayout(Units(3), {.bucket_elements = 700});
  std::vector<UnitRole> roles;
  std::vector<size_t> first;
  for (const ParameterBucket& bucket : layout.buckets) {
    roles.push_back(bucket.role);
    first.push_back(bucket.first_parameter);
  }
  using enum UnitRole;
  EXPECT_EQ(roles,
            (std::vector<UnitRole>{kTable, kMatrices, kMatrices, kMatrices, kTable, kVectors}));
  EXPECT_EQ(first, (std::vector<size_t>{14, 10, 6, 2, 0, 1}));
}

TEST(ParameterLayout, OwnersShareTheCost) {
  const ParameterLayout layout =
      MakeParameterLayout(Units(8), {.data_ranks = 4, .tensor_ranks = 2});
  std::vector<int> matrices(4);
  for (const MatrixOwner& owner : layout.owners) {
    if (owner.data >= 0) ++matrices[owner.data];
  }
  for (const int count : matrices) EXPECT_EQ(count, 6);
}

// Experts have buckets of their own, owned by other ranks, and counts one that is not of gradients.
TEST(ParameterLayoutTest, ExpertsAndCountsStandApart) {
  std::vector<LayoutUnit> units;
  for (size_t layer = 0; layer < 2; ++layer) {
    const size_t first = 4 * layer;
    units.push_back({UnitRole::kMatrices, false, first, {64}, {{8, 8}}});
    units.push_back({UnitRole::kCounts, false, first + 1, {4}, {}});
    units.push_back({UnitRole::kMatrices, true, first + 2, {64}, {{8, 8}}});
    units.push_back({UnitRole::kMatrices, true, first + 3, {64}, {{8, 8}}});
  }
  const ParameterLayout layout =
      MakeParameterLayout(units, {.data_ranks = 4, .tensor_ranks = 2, .expert_replicas = 2});
  std::vector<std::pair<UnitRole, bool>> kinds;
  for (const ParameterBucket& bucket : layout.buckets) {
    kinds.push_back({bucket.role, bucket.of_expert});
    EXPECT_EQ(bucket.counts.size(), bucket.of_expert ? 2 : 4);
  }
  EXPECT_EQ(kinds, (std::vector<std::pair<UnitRole, bool>>{{UnitRole::kMatrices, false},
                                                           {UnitRole::kMatrices, true},
                                                           {UnitRole::kCounts, false}}));
  EXPECT_EQ(layout.buckets[1].counts, (std::vector<int64_t>{128, 128}));
  EXPECT_EQ(layout.buckets[2].elements.size(), 128);
  for (const size_t expert : {2, 3, 6, 7}) {
    EXPECT_LT(layout.owners[expert].data, 2);
    EXPECT_EQ(layout.owners[expert].tensor, 0);
  }
  EXPECT_EQ(layout.owners[1].data, -1);
}

}  // namespace
}  // namespace fathom
