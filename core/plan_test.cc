#include "core/plan.h"

#include "gtest/gtest.h"

namespace fathom {
namespace {

PlanSegment Dense(int64_t repeat = 1) { return {.repeat = repeat, .layer = {}, .group = {}}; }

PlanSegment Sparse(int64_t repeat, int64_t sparsity) {
  return {.repeat = repeat, .layer = {LayerKind::kSparse, sparsity}, .group = {}};
}

PlanSegment Group(int64_t repeat, std::vector<PlanSegment> segments) {
  return {.repeat = repeat, .layer = {}, .group = std::move(segments)};
}

// The sparsity of each layer, with "!" after a layer that resets the counts.
std::string Describe(const LayerPlan& plan) {
  std::string text;
  for (const PlannedLayer& layer : plan.layers) {
    EXPECT_EQ(layer.spec.kind == LayerKind::kDense, layer.spec.sparsity == 1);
    text += std::to_string(layer.spec.sparsity) + (layer.resets_counts ? "! " : " ");
  }
  return text;
}

TEST(PlanTest, WritesOutTheNamedModels) {
  const LayerPlan a4k8 = MakeLayerPlan(
      {Dense(4), Group(1, {Sparse(24, 8), Dense()}), Group(4, {Sparse(32, 8), Dense()})}, 0);
  EXPECT_EQ(a4k8.layers.size(), 161);
  EXPECT_DOUBLE_EQ(a4k8.active_layers(), 28);
  EXPECT_EQ(ShortForm(a4k8.segments), "4*D + (24*S8 + D) + 4*(32*S8 + D)");

  const LayerPlan a3k16 = MakeLayerPlan({Dense(4), Group(6, {Sparse(48, 16), Dense()})}, 0);
  EXPECT_EQ(a3k16.layers.size(), 298);
  EXPECT_DOUBLE_EQ(a3k16.active_layers(), 28);
  EXPECT_EQ(ShortForm(a3k16.segments), "4*D + 6*(48*S16 + D)");

  const LayerPlan mod = MakeLayerPlan({Dense(), Group(24, {Sparse(1, 8), Dense()})}, 0);
  EXPECT_EQ(mod.layers.size(), 49);
  EXPECT_DOUBLE_EQ(mod.active_layers(), 28);
  EXPECT_EQ(ShortForm(mod.segments), "D + 24*(S8 + D)");

  EXPECT_EQ(ShortForm({Dense(28)}), "28*D");
  EXPECT_EQ(ShortForm({Dense(4), Sparse(384, 16)}), "4*D + 384*S16");
}

TEST(PlanTest, MixturesOfExperts) {
  const PlanSegment moe{.repeat = 2, .layer = {LayerKind::kDense, 1, true}, .group = {}};
  const PlanSegment sparse{.repeat = 3, .layer = {LayerKind::kSparse, 16, true}, .group = {}};
  const LayerPlan plan = MakeLayerPlan({moe, Group(2, {sparse, Sparse(1, 4), Dense()})}, 0);
  EXPECT_EQ(ShortForm(plan.segments), "2*E + 2*(3*SE16 + S4 + D)");
  EXPECT_DOUBLE_EQ(plan.active_layers(), 2 + 2 * (3 / 16.0 + 0.25 + 1));
  EXPECT_EQ(Describe(plan), "1! 1! 16 16 16 4 1! 16 16 16 4 1! ");
  EXPECT_TRUE(plan.has_experts());
  EXPECT_TRUE(plan.has_dense_ffn());
  EXPECT_FALSE(MakeLayerPlan({moe, sparse}, 0).has_dense_ffn());
  EXPECT_FALSE(MakeLayerPlan({Dense(), Sparse(1, 4)}, 0).has_experts());
  EXPECT_NE(moe.layer, LayerSpec());
}

TEST(PlanTest, KeepsTheOrderInNestedGroups) {
  const LayerPlan plan =
      MakeLayerPlan({Sparse(1, 2), Group(2, {Group(2, {Sparse(1, 3), Sparse(1, 5)}), Dense()})}, 0);
  EXPECT_EQ(Describe(plan), "2 3 5 3 5 1! 3 5 3 5 1! ");
  EXPECT_EQ(ShortForm(plan.segments), "S2 + 2*(2*(S3 + S5) + D)");
}

TEST(PlanTest, ResetsCountsAfterDenseLayersOnly) {
  EXPECT_EQ(Describe(MakeLayerPlan({Dense(2), Sparse(3, 4), Dense()}, 0)), "1! 1! 4 4 4 1! ");
}

TEST(PlanTest, ResetsCountsEverySoManySparseLayersSinceTheLastReset) {
  // The dense layer in between starts the interval anew.
  EXPECT_EQ(Describe(MakeLayerPlan({Sparse(3, 4), Dense(), Sparse(5, 4)}, 2)),
            "4 4! 4 1! 4 4! 4 4! 4 ");
}

}  // namespace
}  // namespace fathom
