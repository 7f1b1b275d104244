#include "runtime/data/blend_order.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>
#include <vector>

namespace fathom {
namespace {

// Goes through two periods and a bit, counting by hand.
void CheckOrder(const std::vector<double>& weights) {
  const auto order = BlendOrder::Create(weights);
  ASSERT_TRUE(order.ok()) << order.status();
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<int64_t> given(weights.size());
  for (int64_t n = 0; n < 2 * order->period() + 7; ++n) {
    const BlendOrder::Place place = order->At(n);
    ASSERT_EQ(place.ordinal, given[place.source]++) << n;
    for (size_t i = 0; i < weights.size(); ++i) {
      ASSERT_LT(std::abs(given[i] - (n + 1) * weights[i] / sum), 1 - 1e-9 * given[i]) << n;
    }
    if (n + 1 == order->period()) {
      ASSERT_EQ(given, order->shares());
    }
  }
}

TEST(BlendOrderTest, EverySourceKeepsItsShareAtAnyTime) {
  CheckOrder({1});
  CheckOrder({1, 1});
  CheckOrder({0.7, 0.2, 0.1});
  CheckOrder({0.9, 0.05, 0.03, 0.02});
  CheckOrder({0.334, 0.333, 0.333});
  CheckOrder({1000, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1});
  CheckOrder({0.000001, 0.012});
  std::mt19937 random(31);
  for (int i = 0; i < 300; ++i) {
    std::vector<double> weights(1 + random() % 12);
    for (double& weight : weights) weight = (1 + random() % 300) / 100.0;
    CheckOrder(weights);
  }
}

TEST(BlendOrderTest, WeightsAreSharesOfTheirSum) {
  EXPECT_EQ(BlendOrder::Create({0.75, 0.25})->shares(), (std::vector<int64_t>{3, 1}));
  EXPECT_EQ(BlendOrder::Create({300, 100})->shares(), (std::vector<int64_t>{3, 1}));
}

TEST(BlendOrderTest, RefusesWeightsWithoutAShare) {
  for (const double weight : {0.0, -1.0, 1e-7, 0.1234567, 2e9, 0.0 / 0.0, 1.0 / 0.0}) {
    EXPECT_TRUE(absl::IsInvalidArgument(BlendOrder::Create({1, weight}).status())) << weight;
  }
  EXPECT_TRUE(absl::IsInvalidArgument(BlendOrder::Create({123.456789, 0.000001}).status()));
}

}  // namespace
}  // namespace fathom
