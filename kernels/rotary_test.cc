#include "kernels/rotary.h"

#include "kernels/testing.h"

namespace fathom {
namespace {

using testing::Cpu;
using testing::Difference;
using testing::GradientError;
using testing::Matrix;
using testing::SameBits;
using testing::View;

template <class T>
class RotaryTypedTest : public ::testing::Test {};
using Types = ::testing::Types<float, double>;
TYPED_TEST_SUITE(RotaryTypedTest, Types);

TYPED_TEST(RotaryTypedTest, TablesHoldTheDigitsAtLargePositions) {
  using T = TypeParam;
  Cpu cpu;
  const int64_t positions = 32768, half = 32;
  Matrix<T> cosine(positions, half, 0), sine(positions, half, 0);
  cpu(RotaryTables{.theta = 1e6, .cosine = cosine.tensor(), .sine = sine.tensor()});
  double worst = 0;
  for (int64_t p = 0; p < positions; p += 41) {
    for (int64_t j = 0; j < half; ++j) {
      const long double phase = p * std::pow(1e6L, -2.0L * j / (2 * half));
      worst = std::max<double>(worst, std::abs(cosine(p, j) - std::cos(phase)));
      worst = std::max<double>(worst, std::abs(sine(p, j) - std::sin(phase)));
    }
  }
  EXPECT_LT(worst, (std::is_same_v<T, float> ? 1e-7 : 1e-10));
}

template <class T>
struct Setting {
  static constexpr int64_t kHeads = 3, kHeadDim = 20, kRows = 6, kPositions = 50;
  Setting() { cpu(RotaryTables{.theta = 100, .cosine = cosine.tensor(), .sine = sine.tensor()}); }
  HeadNormRotary Forward(Tensor y) {
    return {.x = x.tensor(),
            .weight = weight.vector(),
            .eps = 1e-3,
            .positions = View(positions),
            .cosine = cosine.tensor(),
            .sine = sine.tensor(),
            .y = y,
            .rstd = rstd.tensor(),
            .count = {}};
  }
  HeadNormRotaryBackward Backward(Tensor d_y, Tensor d_x) {
    return {.x = x.tensor(),
            .weight = weight.vector(),
            .positions = View(positions),
            .cosine = cosine.tensor(),
            .sine = sine.tensor(),
            .rstd = rstd.tensor(),
            .dy = d_y,
            .dx = d_x,
            .dweight = dweight.vector(),
            .count = {}};
  }
  Cpu cpu;
  Matrix<T> cosine{kPositions, kHeadDim / 2, 0}, sine{kPositions, kHeadDim / 2, 0};
  Matrix<T> x = Matrix<T>::Random(1, kRows, kHeads* kHeadDim);
  Matrix<T> weight = Matrix<T>::Random(2, 1, kHeadDim);
  Matrix<T> dweight = Matrix<T>::Random(3, 1, kHeadDim);
  Matrix<T> rstd{kRows, kHeads};
  std::vector<int32_t> positions = {0, 49, 3, 3, 17, 1};
};

TYPED_TEST(RotaryTypedTest, ForwardAgreesWithAPlainLoop) {
  using T = TypeParam;
  Setting<T> s;
  const int64_t h = s.kHeadDim, width = s.kHeads * h;
  Matrix<T> y(s.kRows, width);
  std::vector<int32_t> count = {5};
  HeadNormRotary forward = s.Forward(y.tensor());
  forward.count = View(count);
  s.cpu(forward);
  Matrix<double> expected(s.kRows, width);
  for (int64_t i = 0; i < 5; ++i) {
    for (int64_t head = 0; head < s.kHeads; ++head) {
      const auto at = [&](int64_t j) { return static_cast<double>(s.x(i, head * h + j)); };
      double squares = 0;
      for (int64_t j = 0; j < h; ++j) squares += at(j) * at(j);
      const double rstd = 1 / std::sqrt(squares / h + 1e-3);
      for (int64_t j = 0; j < h / 2; ++j) {
        const double phase = s.positions[i] * std::pow(100.0, -2.0 * j / h);
        const double low = at(j) * rstd * s.weight(0, j);
        const double high = at(j + h / 2) * rstd * s.weight(0, j + h / 2);
        expected(i, head * h + j) = low * std::cos(phase) - high * std::sin(phase);
        expected(i, head * h + j + h / 2) = high * std::cos(phase) + low * std::sin(phase);
      }
    }
  }
  EXPECT_LT(Difference(y, expected, 5), testing::kTolerance<T>);
  EXPECT_TRUE(y.UntouchedBeyond(5));

  const Matrix<T> x = s.x;
  s.cpu(s.Forward(y.tensor()));
  s.cpu(s.Forward(s.x.tensor()));  // in place
  for (int64_t i = 0; i < s.kRows; ++i) EXPECT_TRUE(SameBits(&s.x(i, 0), &y(i, 0), width));
}

TEST(RotaryTest, GradientsAgreeWithFiniteDifferences) {
  Setting<double> s;
  const int64_t width = s.kHeads * s.kHeadDim;
  Matrix<double> y(s.kRows, width), dx(s.kRows, width);
  Matrix<double> dy = Matrix<double>::Random(4, s.kRows, width);
  const Matrix<double> before = s.dweight;
  const auto loss = [&] {
    s.cpu(s.Forward(y.tensor()));
    return testing::InnerProduct(y, dy);
  };
  loss();
  s.cpu(s.Backward(dy.tensor(), dx.tensor()));
  Matrix<double> dweight(1, s.kHeadDim);
  for (int64_t j = 0; j < s.kHeadDim; ++j) dweight(0, j) = s.dweight(0, j) - before(0, j);
  EXPECT_LT(GradientError(s.x, dx, loss), 1e-7);
  EXPECT_LT(GradientError(s.weight, dweight, loss), 1e-7);

  loss();
  Matrix<double> in_place = dy;
  s.cpu(s.Backward(in_place.tensor(), in_place.tensor()));
  for (int64_t i = 0; i < s.kRows; ++i) EXPECT_TRUE(SameBits(&in_place(i, 0), &dx(i, 0), width));
}

TYPED_TEST(RotaryTypedTest, BackwardKeepsToTheRowsInUse) {
  using T = TypeParam;
  Setting<T> s;
  const int64_t width = s.kHeads * s.kHeadDim;
  Matrix<T> y(s.kRows, width), dx(s.kRows, width), dy = Matrix<T>::Random(4, s.kRows, width);
  s.cpu(s.Forward(y.tensor()));
  std::vector<int32_t> count = {2};
  HeadNormRotaryBackward backward = s.Backward(dy.tensor(), dx.tensor());
  backward.count = View(count);
  s.cpu(backward);
  EXPECT_TRUE(dx.UntouchedBeyond(2));
  EXPECT_FALSE(std::isnan(dx(1, width - 1)));
}

}  // namespace
}  // namespace fathom
