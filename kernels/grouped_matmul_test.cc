#include "kernels/grouped_matmul.h"

#include <numeric>

#include "kernels/elementwise.h"
#include "kernels/matmul.h"
#include "kernels/testing.h"

namespace fathom {
namespace {

using testing::Cpu;
using testing::Difference;
using testing::kTolerance;
using testing::Matrix;
using testing::SameBits;

using Counts = std::vector<int64_t>;

int64_t Total(const Counts& rows) { return std::accumulate(rows.begin(), rows.end(), int64_t{0}); }

// One weight [out, in] per group. Groups without rows have one that is NaN, which nobody may read.
template <class T>
struct Weights {
  Weights(const Counts& rows, int64_t out, int64_t in) {
    for (size_t g = 0; g < rows.size(); ++g) {
      matrices.push_back(rows[g] > 0 ? Matrix<T>::Random(100 + g, out, in) : Matrix<T>(out, in));
    }
    for (Matrix<T>& matrix : matrices) tensors.push_back(matrix.tensor());
  }
  std::vector<Matrix<T>> matrices;
  std::vector<Tensor> tensors;
};

// y_g = x_g w_g^T, or x_g w_g.
template <class T>
Matrix<double> Expected(const Matrix<T>& x, const Weights<T>& weights, const Counts& rows,
                        bool transpose, int64_t columns) {
  Matrix<double> y(x.rows, columns);
  int64_t row = 0;
  for (size_t g = 0; g < rows.size(); ++g) {
    const Matrix<T>& w = weights.matrices[g];
    for (const int64_t end = row + rows[g]; row < end; ++row) {
      for (int64_t j = 0; j < columns; ++j) {
        y(row, j) = 0;
        for (int64_t l = 0; l < x.columns; ++l) {
          y(row, j) +=
              static_cast<double>(x(row, l)) * static_cast<double>(transpose ? w(j, l) : w(l, j));
        }
      }
    }
  }
  return y;
}

// Balanced, uneven, more groups than rows, all rows in one group, no rows at all.
const std::vector<Counts>& Loads() {
  static const std::vector<Counts> loads = {{32, 32, 32, 32},
                                            {1, 0, 77, 300, 0, 5, 24},
                                            {0, 0, 0, 1, 0, 0, 1, 0, 0},
                                            {0, 250, 0},
                                            {64},
                                            {0, 0},
                                            {}};
  return loads;
}

template <class T>
class GroupedMatMulTypedTest : public ::testing::Test {};
using Types = ::testing::Types<float, double, BFloat16>;
TYPED_TEST_SUITE(GroupedMatMulTypedTest, Types);

TYPED_TEST(GroupedMatMulTypedTest, ForwardAndInputGradientAgreeWithPlainLoops) {
  using T = TypeParam;
  for (const int threads : {1, 2, 5}) {
    Cpu cpu(threads);
    for (const Counts& rows : Loads()) {
      const int64_t used = Total(rows), in = 40, out = 530;
      Weights<T> weights(rows, out, in);
      Matrix<T> x(used + 3, in), y(used + 3, out), dx(used + 3, in);
      x.Randomize(1, used);
      GroupedLinearForward(*cpu.stream, x.tensor(), weights.tensors, rows, y.tensor());
      EXPECT_LT(Difference(y, Expected(x, weights, rows, true, out), used), kTolerance<T>);
      EXPECT_TRUE(y.UntouchedBeyond(used));
      GroupedLinearBackwardInput(*cpu.stream, y.tensor(), weights.tensors, rows, dx.tensor());
      EXPECT_LT(Difference(dx, Expected(y, weights, rows, false, in), used), kTolerance<T>);
      EXPECT_TRUE(dx.UntouchedBeyond(used));
    }
  }
}

TYPED_TEST(GroupedMatMulTypedTest, WeightGradientAddsToBusyGroupsAlone) {
  using T = TypeParam;
  using S = std::conditional_t<std::is_same_v<T, BFloat16>, float, T>;
  for (const int threads : {1, 2, 5}) {
    Cpu cpu(threads);
    for (const Counts& rows : Loads()) {
      const int64_t used = Total(rows), in = 40, out = 330;
      Matrix<T> x(used + 3, in), dy(used + 3, out);
      x.Randomize(1, used);
      dy.Randomize(2, used);
      Weights<S> gradients(rows, out, in);
      const Weights<S> before = gradients;
      GroupedLinearBackwardWeight(*cpu.stream, dy.tensor(), x.tensor(), rows, gradients.tensors);
      int64_t first = 0;
      for (size_t g = 0; g < rows.size(); ++g) {
        if (rows[g] == 0) {
          EXPECT_TRUE(gradients.matrices[g].UntouchedBeyond(0)) << g;
          continue;
        }
        Matrix<double> expected(out, in);
        for (int64_t o = 0; o < out; ++o) {
          for (int64_t c = 0; c < in; ++c) {
            expected(o, c) = before.matrices[g](o, c);
            for (int64_t i = first; i < first + rows[g]; ++i) {
              expected(o, c) += static_cast<double>(dy(i, o)) * static_cast<double>(x(i, c));
            }
          }
        }
        EXPECT_LT(Difference(gradients.matrices[g], expected), kTolerance<S>) << g;
        EXPECT_TRUE(gradients.matrices[g].UntouchedBeyond(out));
        first += rows[g];
      }
    }
  }
}

TEST(GroupedMatMulTest, IdleGroupsNeedNoMatrices) {
  Cpu cpu;
  Matrix<float> x = Matrix<float>::Random(1, 5, 8), w = Matrix<float>::Random(2, 6, 8), y(5, 6);
  Matrix<float> dw(6, 8);
  cpu(Fill{.value = 0, .y = dw.tensor()});
  GroupedLinearForward(*cpu.stream, x.tensor(), {{}, w.tensor(), {}}, {0, 5, 0}, y.tensor());
  GroupedLinearBackwardWeight(*cpu.stream, y.tensor(), x.tensor(), {0, 5, 0},
                              {{}, dw.tensor(), {}});
  Matrix<float> expected(5, 6);
  LinearForward(*cpu.stream, x.tensor(), w.tensor(), expected.tensor());
  EXPECT_EQ(Difference(y, expected), 0);
  EXPECT_GT(std::abs(dw(5, 7)), 0);
}

TEST(GroupedMatMulTest, BFloat16SumsInFloat) {
  Cpu cpu;
  const Counts rows = {130, 0, 7};
  Weights<BFloat16> weights(rows, 300, 65);
  Matrix<BFloat16> x = Matrix<BFloat16>::Random(1, 137, 65);
  Matrix<float> y(137, 300);
  GroupedLinearForward(*cpu.stream, x.tensor(), weights.tensors, rows, y.tensor());
  EXPECT_LT(Difference(y, Expected(x, weights, rows, true, 300)), 1e-6);
}

// A row's result is the same whatever company it has in its group, and whatever groups there are:
// the one that MatMul gives it.
template <class T, class C>
void ExpectTheBitsOfMatMul(bool transpose, int64_t n, int64_t k) {
  const Counts loads[] = {{700}, {1, 23, 24, 25, 300, 327}, {0, 350, 0, 200, 150}};
  Matrix<T> x = Matrix<T>::Random(1, 700, k, 0);
  Matrix<T> w = transpose ? Matrix<T>::Random(2, n, k, 0, 0.1) : Matrix<T>::Random(2, k, n, 0, 0.1);
  for (const int threads : {1, 3}) {
    Cpu cpu(threads);
    Matrix<C> expected(700, n, 0);
    cpu(MatMul{.a = x.tensor(), .b = w.tensor(), .c = expected.tensor(), .transpose_b = transpose});
    for (const Counts& rows : loads) {
      Matrix<C> y(700, n, 0);
      cpu(GroupedMatMul{.a = x.tensor(),
                        .b = std::vector<Tensor>(rows.size(), w.tensor()),
                        .c = y.tensor(),
                        .rows = rows,
                        .transpose_b = transpose});
      for (int64_t i = 0; i < 700; ++i) {
        ASSERT_TRUE(SameBits(&y(i, 0), &expected(i, 0), n))
            << "row " << i << ", n " << n << ", k " << k << ", threads " << threads;
      }
    }
  }
}

TEST(GroupedMatMulTest, RowsHaveTheBitsOfMatMul) {
  for (const bool transpose : {false, true}) {
    for (const auto& [n, k] :
         std::vector<std::pair<int64_t, int64_t>>{{8, 8}, {257, 192}, {1000, 100}, {520, 3000}}) {
      ExpectTheBitsOfMatMul<float, float>(transpose, n, k);
      ExpectTheBitsOfMatMul<BFloat16, float>(transpose, n, k);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(GroupedMatMulTest, WeightGradientsHaveTheBitsOfMatMul) {
  const Counts rows = {40, 0, 3, 257};
  Matrix<float> dy = Matrix<float>::Random(1, 300, 140), x = Matrix<float>::Random(2, 300, 530);
  for (const int threads : {1, 2, 8}) {
    Cpu cpu(threads);
    Weights<float> gradients(rows, 140, 530), expected(rows, 140, 530);
    GroupedLinearBackwardWeight(*cpu.stream, dy.tensor(), x.tensor(), rows, gradients.tensors);
    int64_t first = 0;
    for (size_t g = 0; g < rows.size(); ++g) {
      if (rows[g] == 0) continue;
      LinearBackwardWeight(*cpu.stream, dy.tensor().Rows(first, first + rows[g]),
                           x.tensor().Rows(first, first + rows[g]), expected.tensors[g]);
      first += rows[g];
      EXPECT_EQ(Difference(gradients.matrices[g], expected.matrices[g]), 0) << g;
    }
  }
}

TEST(GroupedMatMulTest, CostCountsRowsAndBusyGroups) {
  std::vector<float> x(1);
  const auto tensor = [&](Shape shape) { return Tensor(x.data(), DType::kFloat32, shape); };
  const Counts rows = {2, 0, 3};
  const std::vector<Tensor> weights(3, tensor({6, 4}));
  const Cost forward =
      GroupedMatMul{
          .a = tensor({9, 4}), .b = weights, .c = tensor({9, 6}), .rows = rows, .transpose_b = true}
          .cost();
  EXPECT_EQ(forward.matrix_flops, 2 * 5 * 4 * 6);
  EXPECT_EQ(forward.bytes, 4 * (5 * 4 + 5 * 6 + 2 * 24));
  const Cost outer =
      GroupedOuterMatMul{.a = tensor({9, 6}), .b = tensor({9, 4}), .c = weights, .rows = rows}
          .cost();
  EXPECT_EQ(outer.matrix_flops, forward.matrix_flops);
  EXPECT_EQ(outer.bytes, forward.bytes);
}

TEST(GroupedMatMulDeathTest, GroupsThatDoNotFit) {
  Cpu cpu(1);
  Matrix<float> x(4, 3), y(4, 2), w(2, 3);
  EXPECT_DEATH(
      GroupedLinearForward(*cpu.stream, x.tensor(), {w.tensor(), w.tensor()}, {3, 2}, y.tensor()),
      "5 rows in groups, of 4");
  EXPECT_DEATH(GroupedLinearForward(*cpu.stream, x.tensor(), {w.tensor()}, {1, 0}, y.tensor()),
               "groups and their matrices");
  EXPECT_DEATH(GroupedLinearForward(*cpu.stream, x.tensor(), {y.tensor()}, {1}, y.tensor()),
               "not 2 x 3");
}

}  // namespace
}  // namespace fathom
