#include "kernels/norm.h"

#include "kernels/testing.h"

namespace fathom {
namespace {

using testing::Cpu;
using testing::Difference;
using testing::GradientError;
using testing::InnerProduct;
using testing::kTolerance;
using testing::Matrix;
using testing::SameBits;
using testing::View;

template <class T>
class NormTypedTest : public ::testing::Test {};
using Types = ::testing::Types<float, double>;
TYPED_TEST_SUITE(NormTypedTest, Types);

TYPED_TEST(NormTypedTest, ForwardAgreesWithAPlainLoop) {
  using T = TypeParam;
  Cpu cpu;
  const int64_t d = 150, m = 5;
  Matrix<T> x = Matrix<T>::Random(1, 9, d), addend = Matrix<T>::Random(2, m, d);
  Matrix<T> weight = Matrix<T>::Random(3, 1, d);
  std::vector<int32_t> index = {0, 3, 4, 7, 8}, count = {4};
  for (const bool indexed : {false, true}) {
    for (const bool added : {false, true}) {
      Matrix<T> sum(m, d), y(m, d), rstd(1, m);
      Matrix<double> expected(m, d), expected_sum(m, d);
      for (int64_t i = 0; i < 4; ++i) {
        double squares = 0;
        for (int64_t j = 0; j < d; ++j) {
          const double s = x(indexed ? index[i] : i, j) + (added ? addend(i, j) : 0.0);
          expected_sum(i, j) = s;
          squares += s * s;
        }
        for (int64_t j = 0; j < d; ++j) {
          expected(i, j) = expected_sum(i, j) / std::sqrt(squares / d + 1e-3) * weight(0, j);
        }
      }
      cpu(RmsNorm{.x = x.tensor(),
                  .index = indexed ? View(index) : Tensor(),
                  .addend = added ? addend.tensor() : Tensor(),
                  .weight = weight.vector(),
                  .eps = 1e-3,
                  .sum = added ? sum.tensor() : Tensor(),
                  .y = y.tensor(),
                  .rstd = rstd.vector(),
                  .count = View(count)});
      EXPECT_LT(Difference(y, expected, 4), kTolerance<T>);
      EXPECT_TRUE(y.UntouchedBeyond(4));
      EXPECT_TRUE(std::isnan(rstd(0, 4)));
      if (added) EXPECT_LT(Difference(sum, expected_sum, 4), kTolerance<T>);
      EXPECT_TRUE(sum.UntouchedBeyond(added ? 4 : 0));
    }
  }
}

TEST(NormTest, RowsDoNotDependOnTheirNumberOrPlace) {
  Matrix<float> x = Matrix<float>::Random(1, 3000, 77), weight = Matrix<float>::Random(2, 1, 77);
  const auto normalize = [&](int threads, int64_t begin, int64_t end) {
    Cpu cpu(threads);
    Matrix<float> y(end - begin, 77), rstd(1, end - begin);
    cpu(RmsNorm{.x = x.tensor().Rows(begin, end),
                .weight = weight.vector(),
                .y = y.tensor(),
                .rstd = rstd.vector()});
    return y;
  };
  const Matrix<float> all = normalize(2, 0, 3000), one = normalize(1, 2000, 2001);
  const Matrix<float> some = normalize(2, 1999, 2010);
  EXPECT_TRUE(SameBits(&one(0, 0), &all(2000, 0), 77));
  EXPECT_TRUE(SameBits(&some(1, 0), &all(2000, 0), 77));
}

// The loss <y, dy> + <s, base>, whose gradient by s is dx.
TEST(NormTest, GradientsAgreeWithFiniteDifferences) {
  Cpu cpu;
  const int64_t m = 4, d = 11;
  Matrix<double> x = Matrix<double>::Random(1, m, d), addend = Matrix<double>::Random(2, m, d);
  Matrix<double> weight = Matrix<double>::Random(3, 1, d);
  Matrix<double> dy = Matrix<double>::Random(4, m, d), base = Matrix<double>::Random(5, m, d);
  Matrix<double> base2 = Matrix<double>::Random(6, m, d);
  Matrix<double> sum(m, d), y(m, d), rstd(1, m);
  const auto loss = [&] {
    cpu(RmsNorm{.x = x.tensor(),
                .addend = addend.tensor(),
                .weight = weight.vector(),
                .sum = sum.tensor(),
                .y = y.tensor(),
                .rstd = rstd.vector()});
    return InnerProduct(y, dy) + InnerProduct(sum, base);
  };
  loss();
  Matrix<double> dx(m, d), dx2(m, d), dweight(1, d);
  dweight.Randomize(7, 1);
  const Matrix<double> dweight_before = dweight;
  const auto differentiate = [&](bool summed, Tensor base_tensor, Tensor dx_tensor, Tensor index) {
    cpu(RmsNormBackward{.x = summed ? sum.tensor() : x.tensor(),
                        .addend = summed ? Tensor() : addend.tensor(),
                        .weight = weight.vector(),
                        .rstd = rstd.vector(),
                        .dy = dy.tensor(),
                        .base = base_tensor,
                        .dx = dx_tensor,
                        .dx_index = index,
                        .base2 = base2.tensor(),
                        .dx2 = dx2.tensor(),
                        .dweight = dweight.vector()});
  };
  differentiate(false, base.tensor(), dx.tensor(), {});
  EXPECT_LT(GradientError(x, dx, loss), 1e-7);
  for (int64_t j = 0; j < d; ++j) dweight(0, j) -= dweight_before(0, j);
  EXPECT_LT(GradientError(weight, dweight, loss), 1e-7);
  for (int64_t j = 0; j < d; ++j) {
    EXPECT_NEAR(dx2(3, j) - base2(3, j), dx(3, j) - base(3, j), 1e-12);
  }

  // From the kept sum, into rows of a larger tensor; then in place.
  loss();
  std::vector<int32_t> index = {0, 2, 5, 6};
  Matrix<double> scattered(8, d), in_place = base;
  differentiate(true, base.tensor(), scattered.tensor(), View(index));
  differentiate(true, in_place.tensor(), in_place.tensor(), {});
  for (int64_t i = 0; i < m; ++i) {
    EXPECT_TRUE(SameBits(&scattered(index[i], 0), &dx(i, 0), d));
    EXPECT_TRUE(SameBits(&in_place(i, 0), &dx(i, 0), d));
  }
  EXPECT_TRUE(std::isnan(scattered(1, 0)));
}

TYPED_TEST(NormTypedTest, WeightGradientsDoNotDependOnTheNumberOfThreads) {
  using T = TypeParam;
  const int64_t m = 2000, d = 64;
  Matrix<T> x = Matrix<T>::Random(1, m, d), dy = Matrix<T>::Random(2, m, d);
  Matrix<T> weight = Matrix<T>::Random(3, 1, d), y(m, d), rstd(1, m);
  Matrix<T> first(1, d), second(1, d);
  std::vector<int32_t> count = {1900};
  for (int threads : {1, 3}) {
    Cpu cpu(threads);
    Matrix<T>& dweight = threads == 1 ? first : second;
    std::fill_n(dweight.data.begin(), d, T(0));
    cpu(RmsNorm{.x = x.tensor(),
                .weight = weight.vector(),
                .y = y.tensor(),
                .rstd = rstd.vector(),
                .count = View(count)});
    Matrix<T> dx(m, d);
    cpu(RmsNormBackward{.x = x.tensor(),
                        .weight = weight.vector(),
                        .rstd = rstd.vector(),
                        .dy = dy.tensor(),
                        .dx = dx.tensor(),
                        .dweight = dweight.vector(),
                        .count = View(count)});
    EXPECT_TRUE(dx.UntouchedBeyond(1900));
  }
  EXPECT_TRUE(SameBits(&first(0, 0), &second(0, 0), d));
  Matrix<double> expected(1, d);
  for (int64_t j = 0; j < d; ++j) {
    expected(0, j) = 0;
    for (int64_t i = 0; i < 1900; ++i) {
      expected(0, j) += static_cast<double>(dy(i, j)) * x(i, j) * rstd(0, i);
    }
  }
  EXPECT_LT(Difference(first, expected), kTolerance<T>);
}

}  // namespace
}  // namespace fathom
