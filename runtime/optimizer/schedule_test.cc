#include "runtime/optimizer/schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

namespace fathom {
namespace {

TEST(Schedule, CosineFollowsTheFormula) {
  const ScheduleConfig config;  // warm-up 1%, down to 10%
  const double peak = 3.2e-3;
  // 1,000 steps: W = 10.
  EXPECT_DOUBLE_EQ(LearningRate(config, peak, 1, 1000), peak / 10);
  EXPECT_DOUBLE_EQ(LearningRate(config, peak, 10, 1000), peak);
  EXPECT_DOUBLE_EQ(LearningRate(config, peak, 11, 1000),
                   peak * (0.1 + 0.45 * (1 + std::cos(std::numbers::pi / 990))));
  EXPECT_DOUBLE_EQ(LearningRate(config, peak, 505, 1000), peak * 0.55);
  EXPECT_EQ(LearningRate(config, peak, 1000, 1000), peak * 0.1);
}

TEST(Schedule, ShortRunsWarmUpForOneStep) {
  const ScheduleConfig config;
  EXPECT_EQ(LearningRate(config, 1, 1, 20), 1);
  EXPECT_EQ(LearningRate(config, 1, 20, 20), 0.1);
  EXPECT_EQ(LearningRate(config, 1, 1, 1), 1);  // warm-up wins
}

TEST(Schedule, WarmupStableDecay) {
  ScheduleConfig config;
  config.kind = ScheduleKind::kWarmupStableDecay;
  config.warmup_fraction = 0.1;
  config.decay_fraction = 0.2;
  EXPECT_DOUBLE_EQ(LearningRate(config, 2, 5, 100), 1);
  EXPECT_EQ(LearningRate(config, 2, 10, 100), 2);
  EXPECT_EQ(LearningRate(config, 2, 80, 100), 2);
  EXPECT_DOUBLE_EQ(LearningRate(config, 2, 90, 100), 2 * 0.55);
  EXPECT_DOUBLE_EQ(LearningRate(config, 2, 100, 100), 2 * 0.1);
}

}  // namespace
}  // namespace fathom
