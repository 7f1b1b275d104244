#include "kernels/cross_entropy.h"

#include "kernels/testing.h"

namespace fathom {
namespace {

using testing::Cpu;
using testing::Difference;
using testing::kTolerance;
using testing::Matrix;
using testing::View;

template <class T>
class CrossEntropyTypedTest : public ::testing::Test {};
using Types = ::testing::Types<float, double>;
TYPED_TEST_SUITE(CrossEntropyTypedTest, Types);

TYPED_TEST(CrossEntropyTypedTest, AgreesWithTheDefinition) {
  using T = TypeParam;
  Cpu cpu;
  const int64_t rows = 40, vocabulary = 1003;
  Matrix<T> logits = Matrix<T>::Random(1, rows, vocabulary, 3, 4);
  const Matrix<T> before = logits;
  std::vector<int32_t> labels(rows);
  for (int64_t i = 0; i < rows; ++i) labels[i] = i % 7 == 3 ? -100 : (i * 131) % vocabulary;
  Matrix<double> losses(1, rows), gradients(rows, vocabulary);
  for (int64_t i = 0; i < rows; ++i) {
    double sum = 0;
    for (int64_t v = 0; v < vocabulary; ++v) sum += std::exp(static_cast<double>(before(i, v)));
    const bool counted = labels[i] >= 0;
    losses(0, i) = counted ? std::log(sum) - before(i, labels[i]) : 0;
    for (int64_t v = 0; v < vocabulary; ++v) {
      const double p = std::exp(static_cast<double>(before(i, v))) / sum;
      gradients(i, v) = counted ? 0.25 * (p - (v == labels[i])) : 0;
    }
  }
  Matrix<T> found(1, rows);
  cpu(CrossEntropy{.logits = logits.tensor(), .labels = View(labels), .losses = found.vector()});
  EXPECT_LT(Difference(found, losses), kTolerance<T>);
  EXPECT_EQ(Difference(logits, before), 0);

  cpu(CrossEntropy{.logits = logits.tensor(),
                   .labels = View(labels),
                   .d_logits = logits.tensor(),
                   .scale = 0.25,
                   .losses = found.vector()});
  EXPECT_LT(Difference(found, losses), kTolerance<T>);
  EXPECT_LT(Difference(logits, gradients), kTolerance<T>);
  EXPECT_EQ(logits(3, 5), 0);
  EXPECT_TRUE(logits.UntouchedBeyond(rows));
}

TYPED_TEST(CrossEntropyTypedTest, EqualLogitsGiveTheLogarithmOfTheVocabulary) {
  using T = TypeParam;
  Cpu cpu;
  Matrix<T> logits(1, 5), losses(1, 1);
  std::fill_n(logits.data.begin(), 5, T(0));
  std::vector<int32_t> labels = {2};
  cpu(CrossEntropy{.logits = logits.tensor(), .labels = View(labels), .losses = losses.vector()});
  EXPECT_NEAR(losses(0, 0), std::log(5.0), kTolerance<T> / 10);
}

TYPED_TEST(CrossEntropyTypedTest, LargeLogitsDoNotOverflow) {
  using T = TypeParam;
  Cpu cpu;
  Matrix<T> logits(2, 20), losses(1, 2);
  for (int64_t v = 0; v < 20; ++v) logits(0, v) = logits(1, v) = v == 4 ? 5000 : -5000;
  std::vector<int32_t> labels = {4, 5};
  cpu(CrossEntropy{.logits = logits.tensor(),
                   .labels = View(labels),
                   .d_logits = logits.tensor(),
                   .scale = 1,
                   .losses = losses.vector()});
  EXPECT_EQ(losses(0, 0), 0);
  EXPECT_EQ(losses(0, 1), 10000);
  EXPECT_EQ(logits(0, 4), 0);
  EXPECT_EQ(logits(1, 4), 1);
  EXPECT_EQ(logits(1, 5), -1);
}

}  // namespace
}  // namespace fathom
