#include "kernels/router.h"

#include <algorithm>
#include <numeric>

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
class RouterTypedTest : public ::testing::Test {};
using Types = ::testing::Types<float, double>;
TYPED_TEST_SUITE(RouterTypedTest, Types);

TYPED_TEST(RouterTypedTest, LogitsAreDotProductsOfOneOrder) {
  using T = TypeParam;
  const int64_t n = 1000, d = 203;
  Matrix<T> x = Matrix<T>::Random(1, n, d), w = Matrix<T>::Random(2, 1, d);
  Matrix<T> all(1, n), alone(1, 1);
  Cpu two(2), one(1);
  two(RouterLogits{.x = x.tensor(), .w = w.vector(), .s = all.vector()});
  Matrix<double> expected(1, n);
  for (int64_t i = 0; i < n; ++i) {
    expected(0, i) = 0;
    for (int64_t j = 0; j < d; ++j) expected(0, i) += static_cast<double>(x(i, j)) * w(0, j);
    one(RouterLogits{.x = x.tensor().Rows(i, i + 1), .w = w.vector(), .s = alone.vector()});
    EXPECT_TRUE(SameBits(&alone(0, 0), &all(0, i), 1)) << i;
  }
  EXPECT_LT(Difference(all, expected), testing::kTolerance<T>);
}

TYPED_TEST(RouterTypedTest, CountsLowerTheLogits) {
  using T = TypeParam;
  Cpu cpu;
  std::vector<T> s = {1, 2, 3}, counts = {0, 1, 4}, z(3);
  cpu(AdjustLogits{.s = View(s), .counts = View(counts), .tau = 0.5, .z = View(z)});
  EXPECT_EQ(z, (std::vector<T>{1, 1.5, 1}));
}

template <class T>
std::vector<int32_t> TopK(std::vector<T> z, int64_t sequences, int64_t k) {
  Cpu cpu;
  std::vector<int32_t> index(sequences * k, -1);
  const int64_t length = z.size() / sequences;
  cpu(SelectTopK{.z = View(z).Reshape({sequences, length}), .k = k, .index = View(index)});
  return index;
}

TYPED_TEST(RouterTypedTest, TopKOfRandomLogits) {
  using T = TypeParam;
  const int64_t sequences = 3, length = 500, k = 37;
  std::vector<T> z(sequences * length);
  // Rounded, so that many tie.
  for (size_t i = 0; i < z.size(); ++i) z[i] = std::round(10 * NormalAt(1, 0, i)) / 4;
  std::vector<int32_t> expected;
  for (int64_t s = 0; s < sequences; ++s) {
    std::vector<int32_t> order(length);
    std::iota(order.begin(), order.end(), s * length);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return z[a] > z[b]; });
    std::sort(order.begin(), order.begin() + k);
    expected.insert(expected.end(), order.begin(), order.begin() + k);
  }
  EXPECT_EQ(TopK(z, sequences, k), expected);
}

TYPED_TEST(RouterTypedTest, TopKOfTiesAndOddValues) {
  using T = TypeParam;
  constexpr T kNan = std::numeric_limits<T>::quiet_NaN();
  constexpr T kInfinity = std::numeric_limits<T>::infinity();
  using Rows = std::vector<int32_t>;
  EXPECT_EQ(TopK(std::vector<T>(50, 0), 1, 4), (Rows{0, 1, 2, 3}));
  EXPECT_EQ(TopK(std::vector<T>{0, 0, 0, 0, 0, 0}, 2, 2), (Rows{0, 1, 3, 4}));
  // -0 and 0 tie, and neither sign of a NaN hides it.
  EXPECT_EQ(TopK(std::vector<T>{-1, T(-0.0), 0, 0}, 1, 2), (Rows{1, 2}));
  EXPECT_EQ(TopK(std::vector<T>{0, T(-0.0), 0, -1}, 1, 2), (Rows{0, 1}));
  EXPECT_EQ(TopK(std::vector<T>{kInfinity, 1, -kNan, 2}, 1, 1), (Rows{2}));
  EXPECT_EQ(TopK(std::vector<T>{kInfinity, 1, kNan, 2}, 1, 2), (Rows{0, 2}));
  EXPECT_EQ(TopK(std::vector<T>{-kInfinity, -5, -3, -4}, 1, 2), (Rows{2, 3}));
  EXPECT_EQ(TopK(std::vector<T>{3, 1, 2}, 1, 3), (Rows{0, 1, 2}));
}

TYPED_TEST(RouterTypedTest, ThresholdTakesAnyNumber) {
  using T = TypeParam;
  Cpu cpu;
  std::vector<T> value = {0.5, -1e-30, T(-0.0), 0, -2, 7};
  std::vector<int32_t> index(6, -1), count = {-1};
  cpu(SelectThreshold{.value = View(value), .index = View(index), .count = View(count)});
  EXPECT_EQ(count[0], 4);
  EXPECT_EQ(index, (std::vector<int32_t>{0, 2, 3, 5, -1, -1}));
  value.assign(6, -1);
  cpu(SelectThreshold{.value = View(value), .index = View(index), .count = View(count)});
  EXPECT_EQ(count[0], 0);
}

TYPED_TEST(RouterTypedTest, DescribesASelection) {
  using T = TypeParam;
  Cpu cpu;
  // Two sequences of 5 rows; the second is two documents.
  std::vector<int32_t> index = {1, 3, 7, 9, 0}, count = {4};
  std::vector<int32_t> row_positions = {0, 1, 2, 3, 4, 0, 0, 1, 2, 3};
  std::vector<int32_t> borders = {0, 5, 6, 10}, segments(4, -1), positions(5, -1);
  std::vector<T> counts(10, 2);
  cpu(DescribeSelection{.index = View(index),
                        .count = View(count),
                        .increment = 0.5,
                        .counts = View(counts),
                        .row_positions = View(row_positions),
                        .positions = View(positions),
                        .borders = View(borders),
                        .segments = View(segments)});
  EXPECT_EQ(counts, (std::vector<T>{2, 2.5, 2, 2.5, 2, 2, 2, 2.5, 2, 2.5}));
  EXPECT_EQ(positions, (std::vector<int32_t>{1, 3, 1, 3, -1}));
  EXPECT_EQ(segments, (std::vector<int32_t>{0, 2, 2, 4}));
}

TYPED_TEST(RouterTypedTest, LossIsTheBinaryCrossEntropy) {
  using T = TypeParam;
  Cpu cpu;
  Matrix<T> u = Matrix<T>::Random(1, 1, 40, 3, 3);
  u(0, 0) = 90;
  u(0, 1) = -90;
  std::vector<int32_t> index = {0, 7, 21, 5}, count = {3};
  std::vector<double> loss = {1};
  cpu(RouterLoss{.u = u.vector(),
                 .index = View(index),
                 .count = View(count),
                 .weight = 0.5,
                 .loss = View(loss)});
  double expected = 0;
  for (int i = 0; i < 40; ++i) {
    const double p = 1 / (1 + std::exp(-static_cast<double>(u(0, i))));
    const bool selected = i == 0 || i == 7 || i == 21;
    expected -= selected ? std::log(p) : std::log1p(-p);
  }
  EXPECT_NEAR(loss[0], 1 + 0.5 * expected, 30 * testing::kTolerance<T>);
  u(0, 1) = 5000;  // e^5000 is no number; not selected, so it costs 5000
  const double before = loss[0];
  cpu(RouterLoss{.u = u.vector(),
                 .index = View(index),
                 .count = View(count),
                 .weight = 0.5,
                 .loss = View(loss)});
  EXPECT_NEAR(loss[0] - before, before - 1 + 2500, 1e-3);
}

TEST(RouterTest, LogitGradientAgreesWithFiniteDifferences) {
  Cpu cpu;
  Matrix<double> u = Matrix<double>::Random(1, 1, 12), ds(1, 12), ds_with_dz(1, 12);
  std::vector<int32_t> index = {2, 3, 11};
  std::vector<double> dz = {0.5, -1, 2};
  RouterLogitGradient operation{
      .u = u.vector(), .index = View(index), .dz = {}, .weight = 0.7, .ds = ds.vector()};
  cpu(operation);
  const double error = GradientError(u, ds, [&] {
    std::vector<double> loss = {0};
    cpu(RouterLoss{
        .u = u.vector(), .index = View(index), .count = {}, .weight = 0.7, .loss = View(loss)});
    return loss[0];
  });
  EXPECT_LT(error, 1e-7);
  operation.dz = View(dz);
  operation.ds = ds_with_dz.vector();
  cpu(operation);
  for (int i = 0; i < 12; ++i) {
    const double through_gate = i == 2 ? 0.5 : i == 3 ? -1 : i == 11 ? 2 : 0;
    EXPECT_NEAR(ds_with_dz(0, i), ds(0, i) + through_gate, 1e-14);
  }
}

TYPED_TEST(RouterTypedTest, BackwardAddsToBothGradients) {
  using T = TypeParam;
  const int64_t n = 700, d = 60;
  Matrix<T> ds = Matrix<T>::Random(1, 1, n), x = Matrix<T>::Random(2, n, d);
  Matrix<T> w = Matrix<T>::Random(3, 1, d), first(1, d);
  for (int threads : {1, 3}) {
    Cpu cpu(threads);
    Matrix<T> dx = Matrix<T>::Random(4, n, d), dw = Matrix<T>::Random(5, 1, d);
    Matrix<double> dx_expected(n, d), dw_expected(1, d);
    for (int64_t j = 0; j < d; ++j) {
      dw_expected(0, j) = dw(0, j);
      for (int64_t i = 0; i < n; ++i) {
        dx_expected(i, j) = dx(i, j) + static_cast<double>(ds(0, i)) * w(0, j);
        dw_expected(0, j) += static_cast<double>(ds(0, i)) * x(i, j);
      }
    }
    cpu(RouterBackward{
        .ds = ds.vector(), .x = x.tensor(), .w = w.vector(), .dx = dx.tensor(), .dw = dw.vector()});
    EXPECT_LT(Difference(dx, dx_expected), testing::kTolerance<T>);
    EXPECT_LT(Difference(dw, dw_expected), testing::kTolerance<T>);
    if (threads == 1) first = dw;
    EXPECT_TRUE(SameBits(&dw(0, 0), &first(0, 0), d));
  }
}

TEST(RouterTest, DotProductsCountAsMatrixFlops) {
  std::vector<float> x(12);
  const Tensor tensor = View(x).Reshape({3, 4});
  EXPECT_EQ((RouterLogits{.x = tensor, .w = {}, .s = {}}.cost().matrix_flops), 2 * 12);
  EXPECT_EQ(
      (RouterBackward{.ds = {}, .x = tensor, .w = {}, .dx = {}, .dw = {}}.cost().matrix_flops),
      4 * 12);
}

}  // namespace
}  // namespace fathom
