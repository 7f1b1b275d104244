#include "kernels/gated_residual.h"

#include "kernels/testing.h"

namespace fathom {
namespace {

using testing::Cpu;
using testing::GradientError;
using testing::Matrix;
using testing::SameBits;
using testing::View;

constexpr int64_t kAll = 9, kSelected = 4, kWidth = 21;

template <class T>
struct Setting {
  GatedResidual Forward(Gate gate, Tensor y) {
    return {.gate = gate,
            .x = x.tensor(),
            .a = a.tensor(),
            .f = f.tensor(),
            .z = z.vector(),
            .scale = scale.vector(),
            .index = View(index),
            .y = y,
            .count = {}};
  }
  Cpu cpu;
  Matrix<T> x = Matrix<T>::Random(1, kSelected, kWidth);
  Matrix<T> a = Matrix<T>::Random(2, kSelected, kWidth);
  Matrix<T> f = Matrix<T>::Random(3, kSelected, kWidth);
  Matrix<T> z = Matrix<T>::Random(4, 1, kAll);
  Matrix<T> scale = Matrix<T>::Random(5, 1, 1);
  std::vector<int32_t> index = {1, 2, 5, 8};
};

template <class T>
class GatedResidualTypedTest : public ::testing::Test {};
using Types = ::testing::Types<float, double>;
TYPED_TEST_SUITE(GatedResidualTypedTest, Types);

TYPED_TEST(GatedResidualTypedTest, FormulasOfTheGates) {
  using T = TypeParam;
  for (const Gate gate : {Gate::kNone, Gate::kMod, Gate::kXMod}) {
    Setting<T> s;
    Matrix<T> y = Matrix<T>::Random(6, kAll, kWidth);
    const Matrix<T> before = y;
    std::vector<int32_t> count = {3};
    GatedResidual operation = s.Forward(gate, y.tensor());
    operation.count = View(count);
    s.cpu(operation);
    for (int64_t row = 0, i = 0; row < kAll; ++row) {
      if (i >= 3 || row != s.index[i]) {
        EXPECT_TRUE(SameBits(&y(row, 0), &before(row, 0), kWidth)) << row;
        continue;
      }
      const double r = 1 / (1 + std::exp(-static_cast<double>(s.z(0, row))));
      for (int64_t j = 0; j < kWidth; ++j) {
        const double x = s.x(i, j), a = s.a(i, j), f = s.f(i, j);
        const double expected = gate == Gate::kNone  ? x + a + f
                                : gate == Gate::kMod ? x + a + r * f
                                                     : x + s.scale(0, 0) * r * (a + f);
        EXPECT_NEAR(y(row, j), expected, testing::kTolerance<T>);
      }
      ++i;
    }
  }
}

TYPED_TEST(GatedResidualTypedTest, TheSumOfXAndAMayComeAsX) {
  using T = TypeParam;
  for (const Gate gate : {Gate::kNone, Gate::kMod}) {
    Setting<T> s;
    Matrix<T> y(kAll, kWidth), z(kAll, kWidth);
    s.cpu(s.Forward(gate, y.tensor()));
    for (int64_t i = 0; i < kSelected; ++i) {
      for (int64_t j = 0; j < kWidth; ++j) s.x(i, j) += s.a(i, j);
    }
    GatedResidual operation = s.Forward(gate, z.tensor());
    operation.a = {};
    s.cpu(operation);
    for (int32_t row : s.index) EXPECT_TRUE(SameBits(&y(row, 0), &z(row, 0), kWidth));
  }
}

TEST(GatedResidualTest, GradientsAgreeWithFiniteDifferences) {
  for (const Gate gate : {Gate::kNone, Gate::kMod, Gate::kXMod}) {
    Setting<double> s;
    Matrix<double> dy = Matrix<double>::Random(7, kAll, kWidth);
    Matrix<double> d_x(kSelected, kWidth), d_f(kSelected, kWidth), dz(1, kSelected), d_scale(1, 1);
    d_scale(0, 0) = 10;
    s.cpu(GatedResidualBackward{.gate = gate,
                                .dy = dy.tensor(),
                                .index = View(s.index),
                                .a = s.a.tensor(),
                                .f = s.f.tensor(),
                                .z = s.z.vector(),
                                .scale = s.scale.vector(),
                                .d_x = d_x.tensor(),
                                .d_f = d_f.tensor(),
                                .dz = dz.vector(),
                                .d_scale = d_scale.vector(),
                                .count = {}});
    d_scale(0, 0) -= 10;
    const auto loss = [&] {
      Matrix<double> y(kAll, kWidth);
      s.cpu(s.Forward(gate, y.tensor()));
      double sum = 0;
      for (int32_t row : s.index) {
        for (int64_t j = 0; j < kWidth; ++j) sum += y(row, j) * dy(row, j);
      }
      return sum;
    };
    EXPECT_LT(GradientError(s.x, d_x, loss), 1e-7);
    EXPECT_LT(GradientError(s.f, d_f, loss), 1e-7);
    EXPECT_LT(GradientError(s.a, gate == Gate::kXMod ? d_f : d_x, loss), 1e-7);
    Matrix<double> dz_of_all(1, kAll);
    for (int64_t row = 0; row < kAll; ++row) dz_of_all(0, row) = 0;
    for (int64_t i = 0; i < kSelected; ++i) dz_of_all(0, s.index[i]) = dz(0, i);
    if (gate == Gate::kNone) {
      for (int64_t i = 0; i < kSelected; ++i) EXPECT_EQ(dz(0, i), 0);
    } else {
      EXPECT_LT(GradientError(s.z, dz_of_all, loss), 1e-7);
    }
    if (gate == Gate::kXMod) {
      EXPECT_LT(GradientError(s.scale, d_scale, loss), 1e-7);
    } else {
      EXPECT_EQ(d_scale(0, 0), 0);
    }
  }
}

TYPED_TEST(GatedResidualTypedTest, BackwardKeepsToTheRowsInUse) {
  using T = TypeParam;
  Setting<T> s;
  Matrix<T> dy = Matrix<T>::Random(7, kAll, kWidth), d_x(kSelected, kWidth), d_f(kSelected, kWidth);
  Matrix<T> dz(1, kSelected), d_scale = Matrix<T>::Random(8, 1, 1);
  const T before = d_scale(0, 0);
  for (int32_t used : {0, 2}) {
    std::vector<int32_t> count = {used};
    s.cpu(GatedResidualBackward{.gate = Gate::kXMod,
                                .dy = dy.tensor(),
                                .index = View(s.index),
                                .a = s.a.tensor(),
                                .f = s.f.tensor(),
                                .z = s.z.vector(),
                                .scale = s.scale.vector(),
                                .d_x = d_x.tensor(),
                                .d_f = d_f.tensor(),
                                .dz = dz.vector(),
                                .d_scale = d_scale.vector(),
                                .count = View(count)});
    EXPECT_TRUE(d_x.UntouchedBeyond(used));
    EXPECT_TRUE(d_f.UntouchedBeyond(used));
    EXPECT_TRUE(std::isnan(dz(0, used)));
    EXPECT_EQ(d_scale(0, 0) == before, used == 0);
  }
}

}  // namespace
}  // namespace fathom
