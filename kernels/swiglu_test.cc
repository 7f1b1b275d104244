#include "kernels/swiglu.h"

#include "kernels/testing.h"

namespace fathom {
namespace {

using testing::Cpu;
using testing::Difference;
using testing::Matrix;

template <class T>
class SwiGluTypedTest : public ::testing::Test {};
using Types = ::testing::Types<float, double>;
TYPED_TEST_SUITE(SwiGluTypedTest, Types);

TYPED_TEST(SwiGluTypedTest, AgreesWithAPlainLoop) {
  using T = TypeParam;
  Cpu cpu;
  const int64_t m = 30, f = 101;
  Matrix<T> gate_up = Matrix<T>::Random(1, m, 2 * f, 3, 3);
  gate_up(0, 0) = -200;  // e^200 is no float
  Matrix<T> y(m, f);
  std::vector<int32_t> count = {25};
  cpu(SwiGlu{.gate_up = gate_up.tensor(), .y = y.tensor(), .count = testing::View(count)});
  Matrix<double> expected(m, f);
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < f; ++j) {
      const double gate = gate_up(i, j);
      expected(i, j) = gate / (1 + std::exp(-gate)) * gate_up(i, f + j);
    }
  }
  EXPECT_LT(Difference(y, expected, 25), testing::kTolerance<T>);
  EXPECT_TRUE(y.UntouchedBeyond(25));
}

TEST(SwiGluTest, GradientsAgreeWithFiniteDifferences) {
  Cpu cpu;
  const int64_t m = 3, f = 9;
  Matrix<double> gate_up = Matrix<double>::Random(1, m, 2 * f), y(m, f), again(m, f);
  Matrix<double> dy = Matrix<double>::Random(2, m, f), gradient(m, 2 * f);
  cpu(SwiGluBackward{.gate_up = gate_up.tensor(),
                     .dy = dy.tensor(),
                     .d_gate_up = gradient.tensor(),
                     .y = again.tensor()});
  const double error = testing::GradientError(gate_up, gradient, [&] {
    cpu(SwiGlu{.gate_up = gate_up.tensor(), .y = y.tensor()});
    return testing::InnerProduct(y, dy);
  });
  EXPECT_LT(error, 1e-7);
  cpu(SwiGlu{.gate_up = gate_up.tensor(), .y = y.tensor()});
  EXPECT_LT(Difference(again, y), 1e-12);
}

TYPED_TEST(SwiGluTypedTest, BackwardKeepsToTheRowsInUse) {
  using T = TypeParam;
  Cpu cpu;
  Matrix<T> gate_up = Matrix<T>::Random(1, 6, 14), dy = Matrix<T>::Random(2, 6, 7);
  Matrix<T> gradient(6, 14), y(6, 7), forward(6, 7);
  std::vector<int32_t> count = {4};
  cpu(SwiGlu{.gate_up = gate_up.tensor(), .y = forward.tensor()});
  cpu(SwiGluBackward{.gate_up = gate_up.tensor(),
                     .dy = dy.tensor(),
                     .d_gate_up = gradient.tensor(),
                     .y = y.tensor(),
                     .count = testing::View(count)});
  EXPECT_TRUE(gradient.UntouchedBeyond(4));
  EXPECT_TRUE(y.UntouchedBeyond(4));
  EXPECT_LT(Difference(y, forward, 4), testing::kTolerance<T>);
}

}  // namespace
}  // namespace fathom
