#include "kernels/optimizer.h"

#include "kernels/testing.h"

namespace fathom {
namespace {

using testing::Cpu;
using testing::kTolerance;
using testing::Matrix;
using testing::View;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::vector<double> Prepare(double squared_norm, std::vector<double> loss, double clip) {
  Cpu cpu;
  std::vector<double> norm = {squared_norm}, step(kStepScalars, 7);
  cpu(PrepareStep{
      .squared_norm = View(norm), .loss = View(loss), .clip = clip, .step = View(step)});
  return step;
}

TEST(OptimizerTest, PrepareStepClipsAndCounts) {
  const std::vector<double> step = Prepare(16, {1, 2}, 1);
  EXPECT_EQ(step[kLearningRate], 7);
  EXPECT_EQ(step[kGradientNorm], 4);
  EXPECT_DOUBLE_EQ(step[kClipScale], 1 / (4 + 1e-6));
  EXPECT_EQ(step[kApply], 1);
  EXPECT_EQ(step[kAdamStep], 8);
  EXPECT_EQ(Prepare(0.25, {1}, 1)[kClipScale], 1);
  EXPECT_EQ(Prepare(16, {1}, 0)[kClipScale], 1);
}

TEST(OptimizerTest, PrepareStepSkipsWhatIsNotFinite) {
  for (const auto& step : {Prepare(kNan, {1}, 1), Prepare(kInfinity, {1}, 1), Prepare(1, {kNan}, 1),
                           Prepare(1, {2, -kInfinity}, 1)}) {
    EXPECT_EQ(step[kApply], 0);
    EXPECT_EQ(step[kAdamStep], 7);
  }
}

// learning rate, clip scale, apply, norm, number of the update
std::vector<double> Step(double apply) { return {0.1, 0.5, apply, 1, 3}; }

template <class T>
class OptimizerTypedTest : public ::testing::Test {};
using Types = ::testing::Types<float, double>;
TYPED_TEST_SUITE(OptimizerTypedTest, Types);

TYPED_TEST(OptimizerTypedTest, AdamWFollowsTheFormula) {
  using T = TypeParam;
  Cpu cpu;
  constexpr int64_t kSize = 40000;  // enough for two threads
  Matrix<T> g = Matrix<T>::Random(1, 1, kSize), first = Matrix<T>::Random(2, 1, kSize);
  Matrix<T> second = Matrix<T>::Random(3, 1, kSize), w = Matrix<T>::Random(4, 1, kSize);
  for (T& value : second.data) value = std::abs(value);
  const Matrix<T> first0 = first, second0 = second, w0 = w;
  std::vector<double> step = Step(1);
  cpu(AdamW{.gradient = g.vector(),
            .step = View(step),
            .decay = 0.2,
            .beta1 = 0.8,
            .beta2 = 0.9,
            .epsilon = 1e-4,
            .first = first.vector(),
            .second = second.vector(),
            .weight = w.vector()});
  for (int64_t i = 0; i < kSize; i += 97) {
    const double gradient = 0.5 * g(0, i);
    const double m = 0.8 * first0(0, i) + 0.2 * gradient;
    const double v = 0.9 * second0(0, i) + 0.1 * gradient * gradient;
    const double update =
        m / (1 - std::pow(0.8, 3)) / (std::sqrt(v / (1 - std::pow(0.9, 3))) + 1e-4);
    EXPECT_NEAR(first(0, i), m, kTolerance<T>);
    EXPECT_NEAR(second(0, i), v, kTolerance<T>);
    EXPECT_NEAR(w(0, i), w0(0, i) * (1 - 0.1 * 0.2) - 0.1 * update, kTolerance<T>);
  }
}

TYPED_TEST(OptimizerTypedTest, MuonFollowsTheFormulas) {
  using T = TypeParam;
  Cpu cpu;
  std::vector<T> g = {2, -4}, momentum = {1, 3}, direction(2), w = {1, -1};
  std::vector<double> step = Step(1);
  cpu(MuonMomentum{.gradient = View(g),
                   .step = View(step),
                   .mu = 0.5,
                   .momentum = View(momentum),
                   .direction = View(direction)});
  EXPECT_EQ(momentum, (std::vector<T>{1.5, -0.5}));
  EXPECT_EQ(direction, (std::vector<T>{1.75, -2.25}));
  cpu(MuonApply{.direction = View(direction),
                .step = View(step),
                .decay = 0.2,
                .factor = 3,
                .weight = View(w)});
  EXPECT_NEAR(w[0], 0.98 - 0.1 * 3 * 1.75, kTolerance<T>);
  EXPECT_NEAR(w[1], -0.98 + 0.1 * 3 * 2.25, kTolerance<T>);
}

TYPED_TEST(OptimizerTypedTest, ASkippedStepChangesNoBit) {
  using T = TypeParam;
  Cpu cpu;
  std::vector<T> g = {T(kNan), T(kInfinity)}, first = {T(-0.0), 2}, second = {3, 4},
                 w = {5, T(-0.0)};
  std::vector<T> direction = {6, 7};
  std::vector<double> step = Step(0);
  cpu(AdamW{.gradient = View(g),
            .step = View(step),
            .decay = 0.5,
            .first = View(first),
            .second = View(second),
            .weight = View(w)});
  cpu(MuonMomentum{.gradient = View(g),
                   .step = View(step),
                   .momentum = View(first),
                   .direction = View(direction)});
  EXPECT_EQ(direction, (std::vector<T>{0, 0}));
  cpu(MuonApply{.direction = View(g), .step = View(step), .decay = 0.5, .weight = View(w)});
  cpu(UpdateExpertBias{.counts = View(second), .rate = 1, .step = View(step), .bias = View(w)});
  EXPECT_EQ(first, (std::vector<T>{0, 2}));
  EXPECT_TRUE(std::signbit(first[0]));
  EXPECT_EQ(second, (std::vector<T>{3, 4}));
  EXPECT_EQ(w, (std::vector<T>{5, 0}));
  EXPECT_TRUE(std::signbit(w[1]));
}

TYPED_TEST(OptimizerTypedTest, ExpertBiasMovesAgainstTheLoad) {
  using T = TypeParam;
  Cpu cpu;
  std::vector<double> step = Step(1);
  const auto update = [&](std::vector<T> counts, std::vector<T> bias, double rate) {
    cpu(UpdateExpertBias{
        .counts = View(counts), .rate = rate, .step = View(step), .bias = View(bias)});
    return bias;
  };
  EXPECT_EQ(update({4, 3}, {0, 0}, 0.25), (std::vector<T>{-0.25, 0.25}));
  EXPECT_EQ(update({5, 5, 5}, {1, 2, 3}, 0.25), (std::vector<T>{1, 2, 3}));
  EXPECT_EQ(update({0, 2, 1, 1}, {1, 1, 1, 1}, 0.5), (std::vector<T>{1.5, 0.5, 1, 1}));
  EXPECT_EQ(update({0, 0}, {1, 2}, 0.5), (std::vector<T>{1, 2}));
  EXPECT_EQ(update({0, 0, 7}, {0, 0, 0}, 0.5), (std::vector<T>{0.5, 0.5, -0.5}));

  std::vector<T> bias = {0, 0};
  for (int i = 0; i < 1000; ++i) bias = update({1, 2}, bias, 0.001);
  EXPECT_NEAR(bias[0], 1, 5e-4);
  EXPECT_NEAR(bias[1], -1, 5e-4);
}

TYPED_TEST(OptimizerTypedTest, MatricesGetUnitNorm) {
  using T = TypeParam;
  Cpu cpu;
  const int64_t batch = 3, rows = 90, columns = 110;
  Matrix<T> x = Matrix<T>::Random(1, batch, rows * columns, 0);
  std::fill_n(&x(1, 0), rows * columns, T(0));
  const Matrix<T> before = x;
  cpu(NormalizeMatrices{.x = x.tensor().Reshape({batch, rows, columns})});
  for (int64_t b : {0, 2}) {
    double squares = 0;
    for (int64_t j = 0; j < rows * columns; ++j) {
      squares += static_cast<double>(before(b, j)) * before(b, j);
    }
    for (int64_t j = 0; j < rows * columns; j += 13) {
      EXPECT_NEAR(x(b, j), before(b, j) / (std::sqrt(squares) + 1e-7), kTolerance<T>);
    }
  }
  EXPECT_EQ(x(1, 5), 0);
}

}  // namespace
}  // namespace fathom
