#include "kernels/embedding.h"

#include <type_traits>
#include <utility>

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

// Windows of a vocabulary of 11 tokens, one of them empty.
constexpr std::pair<int64_t, int64_t> kWindows[] = {{0, 4}, {4, 4}, {4, 5}, {5, 11}};

// The rows of a window; an empty one is memory that nobody may read.
template <class T>
Tensor WindowOf(Matrix<T>& table, int64_t begin, int64_t end) {
  if (begin == end) return Tensor(nullptr, DTypeOf<T>, {0, table.columns});
  return table.tensor().Rows(begin, end);
}

template <class T>
class VocabularyWindowTypedTest : public ::testing::Test {};
using WindowTypes = ::testing::Types<float, double, BFloat16>;
TYPED_TEST_SUITE(VocabularyWindowTypedTest, WindowTypes);

TYPED_TEST(VocabularyWindowTypedTest, TokensOutsideGiveZeros) {
  using T = TypeParam;
  Cpu cpu;
  Matrix<T> table = Matrix<T>::Random(1, 11, 33);
  std::vector<int32_t> tokens = {5, 0, 5, 3, 4, 10};
  const std::vector<T> zeros(33, static_cast<T>(0));
  for (const auto& [begin, end] : kWindows) {
    Matrix<T> x(6, 33);
    cpu(Embedding{.tokens = View(tokens),
                  .table = WindowOf(table, begin, end),
                  .first_token = begin,
                  .x = x.tensor()});
    for (int i = 0; i < 6; ++i) {
      const bool inside = tokens[i] >= begin && tokens[i] < end;
      EXPECT_TRUE(SameBits(&x(i, 0), inside ? &table(tokens[i], 0) : zeros.data(), 33))
          << "token " << tokens[i] << " in " << begin << " to " << end;
    }
    EXPECT_TRUE(x.UntouchedBeyond(6));
  }
}

TYPED_TEST(VocabularyWindowTypedTest, BackwardPassesOverTokensOutside) {
  using T = TypeParam;
  using S = std::conditional_t<std::is_same_v<T, double>, double, float>;
  Cpu cpu;
  const int64_t n = 3000, d = 70, vocabulary = 11;
  Matrix<T> dx = Matrix<T>::Random(1, n, d);
  std::vector<int32_t> tokens(n);
  for (int64_t i = 0; i < n; ++i) tokens[i] = (i * i + i) / 2 % vocabulary;
  for (const auto& [begin, end] : kWindows) {
    Matrix<S> d_table = Matrix<S>::Random(2, vocabulary, d), expected = d_table;
    for (int64_t i = 0; i < n; ++i) {
      if (tokens[i] < begin || tokens[i] >= end) continue;
      for (int64_t j = 0; j < d; ++j) expected(tokens[i], j) += static_cast<S>(dx(i, j));
    }
    cpu(EmbeddingBackward{.tokens = View(tokens),
                          .dx = dx.tensor(),
                          .d_table = WindowOf(d_table, begin, end),
                          .first_token = begin});
    for (int64_t v = 0; v < vocabulary; ++v) {
      EXPECT_TRUE(SameBits(&d_table(v, 0), &expected(v, 0), d))
          << "token " << v << " of " << begin << " to " << end;
    }
  }
}

TEST(VocabularyWindowDeathTest, NegativeTokensAreInNoVocabulary) {
  Cpu cpu(1);
  Matrix<float> table = Matrix<float>::Random(1, 3, 2), x(1, 2);
  std::vector<int32_t> tokens = {-7};
  EXPECT_DEATH(cpu(Embedding{.tokens = View(tokens), .table = table.tensor(), .x = x.tensor()}),
               "token -7");
}

}  // namespace
}  // namespace fathom
