#include "kernels/embedding.h"

#include "kernels/testing.h"

namespace fathom {
namespace {

using testing::Cpu;
using testing::Matrix;
using testing::SameBits;
using testing::View;

template <class T>
class EmbeddingTypedTest : public ::testing::Test {};
using Types = ::testing::Types<float, double>;
TYPED_TEST_SUITE(EmbeddingTypedTest, Types);

TYPED_TEST(EmbeddingTypedTest, LooksUpRows) {
  using T = TypeParam;
  Cpu cpu;
  Matrix<T> table = Matrix<T>::Random(1, 6, 33), x(4, 33);
  std::vector<int32_t> tokens = {5, 0, 5, 2};
  cpu(Embedding{.tokens = View(tokens), .table = table.tensor(), .x = x.tensor()});
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(SameBits(&x(i, 0), &table(tokens[i], 0), 33));
  EXPECT_TRUE(x.UntouchedBeyond(4));
}

TYPED_TEST(EmbeddingTypedTest, BackwardAddsRowsInOrderWhateverTheThreads) {
  using T = TypeParam;
  const int64_t n = 3000, d = 70, vocabulary = 11;
  Matrix<T> dx = Matrix<T>::Random(1, n, d);
  std::vector<int32_t> tokens(n);
  for (int64_t i = 0; i < n; ++i) tokens[i] = i * i % vocabulary;
  Matrix<T> expected = Matrix<T>::Random(2, vocabulary, d);
  for (int threads : {1, 3}) {
    Cpu cpu(threads);
    Matrix<T> d_table = Matrix<T>::Random(2, vocabulary, d);
    cpu(EmbeddingBackward{.tokens = View(tokens), .dx = dx.tensor(), .d_table = d_table.tensor()});
    if (threads == 1) {
      for (int64_t i = 0; i < n; ++i) {
        for (int64_t j = 0; j < d; ++j) expected(tokens[i], j) += dx(i, j);
      }
    }
    for (int64_t v = 0; v < vocabulary; ++v) {
      EXPECT_TRUE(SameBits(&d_table(v, 0), &expected(v, 0), d)) << v << " " << threads;
    }
  }
}

}  // namespace
}  // namespace fathom
