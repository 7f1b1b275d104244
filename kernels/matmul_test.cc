#include "kernels/matmul.h"

#include <array>

#include "kernels/testing.h"

namespace fathom {
namespace {

using testing::Cpu;
using testing::Difference;
using testing::kTolerance;
using testing::Matrix;
using testing::SameBits;

template <class T>
class MatMulTypedTest : public ::testing::Test {};
using Types = ::testing::Types<float, double, BFloat16>;
TYPED_TEST_SUITE(MatMulTypedTest, Types);

template <class A, class B, class C>
Matrix<double> Expected(const Matrix<A>& a, bool transpose_a, const Matrix<B>& b, bool transpose_b,
                        double alpha, double beta, const Matrix<C>& c, int64_t k) {
  Matrix<double> expected(c.rows, c.columns);
  for (int64_t i = 0; i < c.rows; ++i) {
    for (int64_t j = 0; j < c.columns; ++j) {
      double sum = 0;
      for (int64_t l = 0; l < k; ++l) {
        sum += static_cast<double>(transpose_a ? a(l, i) : a(i, l)) *
               static_cast<double>(transpose_b ? b(j, l) : b(l, j));
      }
      expected(i, j) = alpha * sum + (beta == 0 ? 0 : beta * static_cast<double>(c(i, j)));
    }
  }
  return expected;
}

TYPED_TEST(MatMulTypedTest, EveryFormAgreesWithAPlainLoop) {
  using T = TypeParam;
  Cpu cpu;
  for (const auto& [m, n, k] : std::vector<std::array<int64_t, 3>>{
           {1, 1, 1}, {3, 5, 7}, {16, 9, 33}, {70, 530, 64}, {300, 40, 100}, {257, 17, 3}}) {
    for (int form = 0; form < 8; ++form) {
      const bool ta = form & 1, tb = form & 2;
      const double alpha = form & 4 ? -1.5 : 1, beta = form & 4 ? 0.5 : 0;
      Matrix<T> a = ta ? Matrix<T>::Random(1, k, m) : Matrix<T>::Random(1, m, k);
      Matrix<T> b = tb ? Matrix<T>::Random(2, n, k) : Matrix<T>::Random(2, k, n);
      Matrix<T> c(m, n);
      if (beta != 0) c.Randomize(3, m);
      const Matrix<double> expected = Expected(a, ta, b, tb, alpha, beta, c, k);
      cpu(MatMul{.a = a.tensor(),
                 .b = b.tensor(),
                 .c = c.tensor(),
                 .transpose_a = ta,
                 .transpose_b = tb,
                 .alpha = alpha,
                 .beta = beta});
      EXPECT_LT(Difference(c, expected), kTolerance<T>) << m << " " << n << " " << k << " " << form;
      EXPECT_TRUE(c.UntouchedBeyond(m));
    }
  }
}

TYPED_TEST(MatMulTypedTest, CountLeavesTheRestAlone) {
  using T = TypeParam;
  Cpu cpu;
  for (int32_t used : {0, 1, 5, 40}) {
    std::vector<int32_t> count = {used};
    Matrix<T> x(40, 24), w = Matrix<T>::Random(2, 32, 24), y(40, 32);
    x.Randomize(1, used);
    LinearForward(*cpu.stream, x.tensor(), w.tensor(), y.tensor(), testing::View(count));
    const Matrix<double> expected = Expected(x, false, w, true, 1, 0, y, 24);
    EXPECT_LT(Difference(y, expected, used), kTolerance<T>);
    EXPECT_TRUE(y.UntouchedBeyond(used));

    Matrix<T> dx(40, 24);
    LinearBackwardInput(*cpu.stream, y.tensor(), w.tensor(), dx.tensor(), testing::View(count));
    EXPECT_LT(Difference(dx, Expected(y, false, w, false, 1, 0, dx, 32), used), kTolerance<T>);
    EXPECT_TRUE(dx.UntouchedBeyond(used));

    // Gradients of weights are summed in the type of statistics.
    using S = std::conditional_t<std::is_same_v<T, BFloat16>, float, T>;
    Matrix<S> dw = Matrix<S>::Random(4, 32, 24);
    const Matrix<double> dw_expected = Expected(y, true, x, false, 1, 1, dw, used);
    LinearBackwardWeight(*cpu.stream, y.tensor(), x.tensor(), dw.tensor(), testing::View(count));
    EXPECT_LT(Difference(dw, dw_expected), kTolerance<S>);
  }
}

TYPED_TEST(MatMulTypedTest, ASumOverNothingIsZero) {
  using T = TypeParam;
  Cpu cpu;
  Matrix<T> a(4, 0, 0), b(0, 5, 0), c(4, 5);
  cpu(MatMul{.a = a.tensor(), .b = b.tensor(), .c = c.tensor()});
  for (int64_t j = 0; j < 5; ++j) EXPECT_EQ(static_cast<double>(c(3, j)), 0);
}

TYPED_TEST(MatMulTypedTest, BatchesAreProductsOfTheirOwn) {
  using T = TypeParam;
  Cpu cpu;
  for (int form = 0; form < 4; ++form) {
    const bool ta = form & 1, tb = form & 2;
    const int64_t m = 9, n = 20, k = 13, batch = 5;
    Matrix<T> a = Matrix<T>::Random(1, batch, m * k, 0), b = Matrix<T>::Random(2, batch, k * n, 0);
    Matrix<T> c(batch, m * n, 0);
    cpu(MatMul{.a = a.tensor().Reshape(ta ? Shape{batch, k, m} : Shape{batch, m, k}),
               .b = b.tensor().Reshape(tb ? Shape{batch, n, k} : Shape{batch, k, n}),
               .c = c.tensor().Reshape({batch, m, n}),
               .transpose_a = ta,
               .transpose_b = tb});
    for (int64_t i = 0; i < batch; ++i) {
      Matrix<T> one_a(ta ? k : m, ta ? m : k, 0), one_b(tb ? n : k, tb ? k : n, 0), one_c(m, n, 0);
      std::copy_n(&a(i, 0), m * k, one_a.data.begin());
      std::copy_n(&b(i, 0), k * n, one_b.data.begin());
      std::copy_n(&c(i, 0), m * n, one_c.data.begin());
      EXPECT_LT(Difference(one_c, Expected(one_a, ta, one_b, tb, 1, 0, one_c, k)), kTolerance<T>);
    }
  }
}

// From operands in bfloat16 to sums in float, exact but for the order of the sum.
TEST(MatMulTest, BFloat16SumsInFloat) {
  Cpu cpu;
  for (const auto& [m, n, k] : std::vector<std::array<int64_t, 3>>{
           {3, 5, 7}, {130, 300, 65}, {40, 20, 2500}, {300, 17, 33}}) {
    for (int form = 0; form < 8; ++form) {
      const bool ta = form & 1, tb = form & 2;
      const double alpha = form & 4 ? -1.5 : 1, beta = form & 4 ? 1 : 0;
      Matrix<BFloat16> a =
          ta ? Matrix<BFloat16>::Random(1, k, m) : Matrix<BFloat16>::Random(1, m, k);
      Matrix<BFloat16> b =
          tb ? Matrix<BFloat16>::Random(2, n, k) : Matrix<BFloat16>::Random(2, k, n);
      Matrix<float> c(m, n);
      if (beta != 0) c.Randomize(3, m);
      const Matrix<double> expected = Expected(a, ta, b, tb, alpha, beta, c, k);
      cpu(MatMul{.a = a.tensor(),
                 .b = b.tensor(),
                 .c = c.tensor(),
                 .transpose_a = ta,
                 .transpose_b = tb,
                 .alpha = alpha,
                 .beta = beta});
      EXPECT_LT(Difference(c, expected), 1e-6) << m << " " << n << " " << k << " " << form;
      EXPECT_TRUE(c.UntouchedBeyond(m));
    }
  }
}

// The property that lets a token's result be compared between layouts: rows are computed alone, at
// other places, among others, and must come out with the same bits.
template <class T, class C = T>
void ExpectRowsIndependent(int64_t n, int64_t k, bool transpose_b) {
  constexpr int64_t kRows = 700;
  Matrix<T> a = Matrix<T>::Random(1, kRows, k, 0);
  Matrix<T> b =
      transpose_b ? Matrix<T>::Random(2, n, k, 0, 0.1) : Matrix<T>::Random(2, k, n, 0, 0.1);
  for (int threads : {1, 2}) {
    Cpu cpu(threads);
    const auto multiply = [&](int64_t begin, int64_t end) {
      Matrix<C> c(end - begin, n, 0);
      cpu(MatMul{.a = a.tensor().Rows(begin, end),
                 .b = b.tensor(),
                 .c = c.tensor(),
                 .transpose_b = transpose_b});
      return c;
    };
    const Matrix<C> all = multiply(0, kRows);
    for (const auto& [begin, end] : std::vector<std::pair<int64_t, int64_t>>{{0, 1},
                                                                             {699, 700},
                                                                             {5, 7},
                                                                             {3, 18},
                                                                             {3, 19},
                                                                             {100, 131},
                                                                             {31, 64},
                                                                             {8, 74},
                                                                             {50, 128},
                                                                             {20, 148},
                                                                             {9, 165},
                                                                             {77, 206},
                                                                             {1, 257},
                                                                             {1, 258},
                                                                             {512, 700},
                                                                             {100, 650}}) {
      const Matrix<C> part = multiply(begin, end);
      for (int64_t i = begin; i < end; ++i) {
        ASSERT_TRUE(SameBits(&part(i - begin, 0), &all(i, 0), n))
            << "row " << i << " of " << begin << " to " << end << ", n " << n << ", k " << k
            << ", threads " << threads << ", transpose_b " << transpose_b;
      }
    }
  }
}

TEST(MatMulTest, RowsDoNotDependOnTheirNumberOrPlace) {
  for (bool transpose_b : {false, true}) {
    for (const auto& [n, k] : std::vector<std::pair<int64_t, int64_t>>{
             {1, 64}, {8, 8}, {257, 192}, {1000, 100}, {512, 512}, {600, 3000}, {64, 8192}}) {
      ExpectRowsIndependent<float>(n, k, transpose_b);
      ExpectRowsIndependent<BFloat16, float>(n, k, transpose_b);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(MatMulTest, CostCountsMultiplyAdds) {
  std::vector<float> x(1);
  const auto tensor = [&](Shape shape) { return Tensor(x.data(), DType::kFloat32, shape); };
  const Cost cost =
      MatMul{.a = tensor({7, 6, 5}), .b = tensor({7, 5, 4}), .c = tensor({7, 6, 4})}.cost();
  EXPECT_EQ(cost.matrix_flops, 2 * 7 * 6 * 5 * 4);
  EXPECT_EQ(cost.bytes, 4 * 7 * (6 * 5 + 5 * 4 + 6 * 4));
}

}  // namespace
}  // namespace fathom
