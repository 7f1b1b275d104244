#include "runtime/loss_watch.h"

#include <gtest/gtest.h>

#include <cmath>

namespace fathom {
namespace {

// 3 + 0.1 and 3 - 0.1 in turn: mean 3, deviation 0.1.
double Quiet(int step) { return step % 2 == 0 ? 3.1 : 2.9; }

LossWatch Settled(int steps) {
  LossWatch watch;
  for (int step = 0; step < steps; ++step) EXPECT_FALSE(watch.Add(Quiet(step)).has_value());
  return watch;
}

TEST(LossWatchTest, MeanAndDeviationAreThoseOfTheLosses) {
  LossWatch watch = Settled(100);
  const auto spike = watch.Add(4);
  ASSERT_TRUE(spike.has_value());
  EXPECT_NEAR(spike->mean, 3, 1e-12);
  EXPECT_NEAR(spike->deviations, 10, 1e-10);
  EXPECT_EQ(spike->count, 1);
}

TEST(LossWatchTest, TheBorderIsFiveDeviations) {
  EXPECT_FALSE(Settled(100).Add(3.499).has_value());
  EXPECT_TRUE(Settled(100).Add(3.501).has_value());
}

TEST(LossWatchTest, NeitherAFallNorAStartIsASpike) {
  EXPECT_FALSE(Settled(100).Add(0.5).has_value());
  EXPECT_FALSE(Settled(19).Add(30).has_value());
  EXPECT_TRUE(Settled(20).Add(30).has_value());
  // A loss that comes down as in training.
  LossWatch watch;
  for (int step = 0; step < 500; ++step) {
    EXPECT_FALSE(watch.Add(2 + 4 * std::exp(-step / 50.0)).has_value()) << step;
  }
}

TEST(LossWatchTest, FlatLossesHaveADeviationOfOnePercent) {
  LossWatch watch;
  for (int step = 0; step < 50; ++step) EXPECT_FALSE(watch.Add(2).has_value());
  EXPECT_FALSE(watch.Add(2.0999).has_value());
  for (int step = 0; step < 2000; ++step) EXPECT_FALSE(watch.Add(2).has_value());
  EXPECT_TRUE(watch.Add(2.11).has_value());
}

TEST(LossWatchTest, OneSpikeDoesNotHideTheNextAndALastingRiseEnds) {
  LossWatch watch = Settled(100);
  EXPECT_TRUE(watch.Add(100).has_value());
  const auto second = watch.Add(100);
  ASSERT_TRUE(second.has_value());
  EXPECT_EQ(second->count, 2);
  bool spiking = true;
  for (int step = 0; step < 1000; ++step) spiking = watch.Add(5).has_value();
  EXPECT_FALSE(spiking);
}

TEST(LossWatchTest, LossesThatAreNotFiniteAreLeftOut) {
  LossWatch watch = Settled(100);
  EXPECT_FALSE(watch.Add(NAN).has_value());
  EXPECT_FALSE(watch.Add(INFINITY).has_value());
  EXPECT_NEAR(watch.Add(4)->mean, 3, 1e-12);
  EXPECT_EQ(watch.spikes(), 1);
}

}  // namespace
}  // namespace fathom
