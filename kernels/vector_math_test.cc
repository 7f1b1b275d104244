#include "kernels/cpu/vector_math.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace fathom::cpu {
namespace {

// The distance between a float and the true value, in units in the last place of the truth.
double UnitsInTheLastPlace(float value, double truth) {
  const float rounded = static_cast<float>(truth);
  const double unit = std::nextafter(rounded, std::numeric_limits<float>::infinity()) - rounded;
  return std::abs(value - truth) / unit;
}

TEST(VectorMathTest, ExpIsExactToTwoUnits) {
  double worst = 0;
  for (double x = -86.9; x < 88.7; x += 0.00037) {
    const float rounded = static_cast<float>(x);
    worst = std::max(worst, UnitsInTheLastPlace(Exp(rounded), std::exp(double{rounded})));
  }
  EXPECT_LE(worst, 2);
}

TEST(VectorMathTest, ExpAtItsEnds) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(Exp(0.0f), 1);
  EXPECT_EQ(Exp(-kInfinity), 0);
  EXPECT_EQ(Exp(-1e30f), 0);
  EXPECT_EQ(Exp(-87.4f), 0);
  EXPECT_EQ(Exp(kInfinity), kInfinity);
  EXPECT_EQ(Exp(90.0f), kInfinity);
  EXPECT_LT(Exp(88.72f), kInfinity);
  EXPECT_TRUE(std::isnan(Exp(std::numeric_limits<float>::quiet_NaN())));
}

TEST(VectorMathTest, SigmoidNeverOverflows) {
  for (float x : {-1e9f, -100.0f, -3.0f, -0.0f, 2.0f, 100.0f, 1e9f}) {
    EXPECT_NEAR(Sigmoid(x), 1 / (1 + std::exp(-double{x})), 1e-7) << x;
  }
  EXPECT_NEAR(Sigmoid(-20.0), std::exp(-20.0) / (1 + std::exp(-20.0)), 1e-24);
}

TEST(VectorMathTest, LaneSumAndMaxTakeEveryElement) {
  for (int64_t n : {0, 1, 7, 15, 16, 17, 31, 32, 100}) {
    std::vector<double> x(n);
    double sum = 0;
    for (int64_t j = 0; j < n; ++j) sum += x[j] = (j * 37 % 101) - 200;
    EXPECT_EQ(LaneSum<double>(n, [&](int64_t j) { return x[j]; }), sum) << n;
    for (int64_t at = 0; at < n; ++at) {
      x[at] += 1000;
      EXPECT_EQ(LaneMax<double>(n, -1e9, [&](int64_t j) { return x[j]; }), x[at]) << n;
      x[at] -= 1000;
    }
  }
}

}  // namespace
}  // namespace fathom::cpu
