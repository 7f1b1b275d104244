#include "kernels/elementwise.h"

#include <algorithm>
#include <utility>

#include "kernels/testing.h"

namespace fathom {
namespace {

using testing::Cpu;
using testing::Matrix;
using testing::SameBits;

template <class T>
class ElementwiseTypedTest : public ::testing::Test {};
using Types = ::testing::Types<float, double>;
TYPED_TEST_SUITE(ElementwiseTypedTest, Types);

TYPED_TEST(ElementwiseTypedTest, FillKeepsToItsColumns) {
  using T = TypeParam;
  Cpu cpu;
  Matrix<T> y(300, 200);
  cpu(Fill{.value = 2.5, .y = y.tensor()});
  EXPECT_TRUE(y.UntouchedBeyond(300));
  for (int64_t i = 0; i < 300; ++i) {
    for (int64_t j = 0; j < 200; ++j) ASSERT_EQ(y(i, j), 2.5);
  }
  std::vector<int32_t> integers(5, 1);
  cpu(Fill{.value = -3, .y = testing::View(integers)});
  EXPECT_EQ(integers, std::vector<int32_t>(5, -3));
}

TYPED_TEST(ElementwiseTypedTest, CopyAndAxpby) {
  using T = TypeParam;
  Cpu cpu;
  for (int64_t padding : {0, 3}) {
    const Matrix<T> original = Matrix<T>::Random(1, 300, 200, padding);
    Matrix<T> x = original, y(300, 200, 1);
    cpu(Copy{.x = x.tensor(), .y = y.tensor()});
    EXPECT_TRUE(y.UntouchedBeyond(300));
    for (int64_t i = 0; i < 300; ++i) ASSERT_TRUE(SameBits(&x(i, 0), &y(i, 0), 200));

    Matrix<T> sum = Matrix<T>::Random(2, 300, 200, padding), before = sum;
    cpu(Axpby{.a = 0.5, .x = x.tensor(), .b = -2, .y = sum.tensor()});
    for (int64_t i = 0; i < 300; ++i) {
      for (int64_t j = 0; j < 200; ++j) {
        ASSERT_NEAR(sum(i, j), 0.5 * x(i, j) - 2 * before(i, j), testing::kTolerance<T>);
      }
    }
    Matrix<T> fresh(300, 200, padding);
    cpu(Axpby{.a = 3, .x = x.tensor(), .b = 0, .y = fresh.tensor()});
    EXPECT_EQ(fresh(299, 199), T(3) * x(299, 199));
    cpu(Axpby{.a = 1, .x = x.tensor(), .b = 1, .y = x.tensor()});
    EXPECT_EQ(x(17, 5), 2 * original(17, 5));
  }
}

TEST(ElementwiseTest, CopyConverts) {
  Cpu cpu;
  Matrix<double> x = Matrix<double>::Random(1, 9, 7);
  Matrix<float> y(9, 7);
  cpu(Copy{.x = x.tensor(), .y = y.tensor()});
  EXPECT_EQ(y(8, 6), static_cast<float>(x(8, 6)));
  EXPECT_TRUE(y.UntouchedBeyond(9));
  Matrix<double> back(9, 7);
  cpu(Copy{.x = y.tensor(), .y = back.tensor()});
  EXPECT_EQ(back(8, 6), y(8, 6));
}

TYPED_TEST(ElementwiseTypedTest, GatherAndScatterByIndex) {
  using T = TypeParam;
  Cpu cpu;
  Matrix<T> x = Matrix<T>::Random(1, 9, 5);
  std::vector<int32_t> index = {1, 4, 8, 0}, count = {3};
  Matrix<T> y(4, 5);
  cpu(GatherRows{.x = x.tensor(),
                 .index = testing::View(index),
                 .y = y.tensor(),
                 .count = testing::View(count)});
  EXPECT_TRUE(y.UntouchedBeyond(3));
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(SameBits(&y(i, 0), &x(index[i], 0), 5));

  Matrix<T> all = Matrix<T>::Random(2, 9, 5), before = all;
  cpu(ScatterRows{.x = y.tensor(),
                  .index = testing::View(index),
                  .y = all.tensor(),
                  .count = testing::View(count)});
  for (int i = 0; i < 9; ++i) {
    const bool selected = i == 1 || i == 4 || i == 8;
    EXPECT_TRUE(SameBits(&all(i, 0), selected ? &x(i, 0) : &before(i, 0), 5)) << i;
  }
}

// Windows of a tensor of 11 rows, the first of them empty.
constexpr std::pair<int64_t, int64_t> kWindows[] = {{0, 0}, {0, 4}, {4, 5}, {5, 11}};

// The rows of a window; an empty one is memory that nobody may read.
template <class T>
Tensor WindowOf(Matrix<T>& x, int64_t begin, int64_t end) {
  if (begin == end) return Tensor(nullptr, DTypeOf<T>, {0, x.columns});
  return x.tensor().Rows(begin, end);
}

template <class T>
class RowWindowTypedTest : public ::testing::Test {};
using WindowTypes = ::testing::Types<float, double, BFloat16>;
TYPED_TEST_SUITE(RowWindowTypedTest, WindowTypes);

TYPED_TEST(RowWindowTypedTest, GatherGivesZerosForRowsOutside) {
  using T = TypeParam;
  Cpu cpu;
  Matrix<T> x = Matrix<T>::Random(1, 11, 5);
  std::vector<int32_t> index = {0, 3, 4, 7, 10, 2}, count = {5};
  const std::vector<T> zeros(5, static_cast<T>(0));
  for (const auto& [begin, end] : kWindows) {
    Matrix<T> y(6, 5);
    cpu(GatherRows{.x = WindowOf(x, begin, end),
                   .first_row = begin,
                   .index = testing::View(index),
                   .y = y.tensor(),
                   .count = testing::View(count)});
    for (int i = 0; i < 5; ++i) {
      const bool inside = index[i] >= begin && index[i] < end;
      EXPECT_TRUE(SameBits(&y(i, 0), inside ? &x(index[i], 0) : zeros.data(), 5))
          << "row " << index[i] << " in rows " << begin << " to " << end;
    }
    EXPECT_TRUE(y.UntouchedBeyond(5));
  }
}

TYPED_TEST(RowWindowTypedTest, ScatterPassesOverRowsOutside) {
  using T = TypeParam;
  Cpu cpu;
  Matrix<T> x = Matrix<T>::Random(1, 6, 5);
  std::vector<int32_t> index = {0, 3, 4, 7, 10, 2}, count = {5};
  for (const auto& [begin, end] : kWindows) {
    Matrix<T> y = Matrix<T>::Random(2, 11, 5), expected = y;
    cpu(ScatterRows{.x = x.tensor(),
                    .index = testing::View(index),
                    .y = WindowOf(y, begin, end),
                    .first_row = begin,
                    .count = testing::View(count)});
    for (int i = 0; i < 5; ++i) {
      if (index[i] < begin || index[i] >= end) continue;
      std::copy_n(&x(i, 0), 5, &expected(index[i], 0));
    }
    for (int row = 0; row < 11; ++row) {
      EXPECT_TRUE(SameBits(&y(row, 0), &expected(row, 0), 5))
          << "row " << row << " of rows " << begin << " to " << end;
    }
    EXPECT_TRUE(y.UntouchedBeyond(11));
  }
}

TEST(RowWindowTest, MovesNoMoreRowsThanTheWindowHas) {
  const auto rows = [](int64_t n) { return Tensor(nullptr, DType::kFloat32, {n, 10}); };
  const Tensor index(nullptr, DType::kInt32, {6});
  const auto gather = [&](int64_t n) {
    return GatherRows{.x = rows(n), .index = index, .y = rows(6), .count = {}}.cost().bytes;
  };
  const auto scatter = [&](int64_t n) {
    return ScatterRows{.x = rows(6), .index = index, .y = rows(n), .count = {}}.cost().bytes;
  };
  EXPECT_EQ(gather(100), 6 * 4 + 2 * 6 * 40);
  EXPECT_EQ(scatter(100), 6 * 4 + 2 * 6 * 40);
  EXPECT_EQ(gather(2), 6 * 4 + (2 + 6) * 40);
  EXPECT_EQ(scatter(2), 6 * 4 + 2 * 2 * 40);
}

TEST(RowWindowDeathTest, NegativeRowsAreInNoTensor) {
  Cpu cpu(1);
  Matrix<float> x = Matrix<float>::Random(1, 3, 2), y(1, 2);
  std::vector<int32_t> index = {-1};
  EXPECT_DEATH(
      cpu(GatherRows{.x = x.tensor(), .index = testing::View(index), .y = y.tensor(), .count = {}}),
      "row -1");
}

TEST(ElementwiseTest, SumsAreTakenInDouble) {
  // 1e8 + 1 is not a float, and 1e16 + 1 not a double.
  std::vector<float> x(100001, 1);
  x[0] = 1e8f;
  std::vector<double> sum = {0.5};
  Cpu cpu;
  cpu(Sum{.x = testing::View(x), .factor = 2, .sum = testing::View(sum)});
  EXPECT_EQ(sum[0], 0.5 + 2 * (1e8 + 100000));
  x[0] = 1e4f;
  sum = {0};
  cpu(SumOfSquares{.x = testing::View(x), .sum = testing::View(sum)});
  EXPECT_EQ(sum[0], 1e8 + 100000);
}

TEST(ElementwiseTest, SumsDoNotDependOnTheNumberOfThreads) {
  Matrix<float> x = Matrix<float>::Random(1, 1, 123457, 0);
  std::vector<double> one = {0, 0}, three = {0, 0};
  for (int threads : {1, 3}) {
    Cpu cpu(threads);
    std::vector<double>& sums = threads == 1 ? one : three;
    cpu(Sum{.x = x.vector(), .sum = testing::View(sums).Rows(0, 1)});
    cpu(SumOfSquares{.x = x.vector(), .sum = testing::View(sums).Rows(1, 2)});
  }
  EXPECT_EQ(one, three);
  EXPECT_NE(one[0], 0);
}

}  // namespace
}  // namespace fathom
