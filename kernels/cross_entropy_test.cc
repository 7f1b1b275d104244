#include "kernels/cross_entropy.h"

#include <algorithm>
#include <limits>

#include "kernels/testing.h"

namespace fathom {
namespace {

using testing::Cpu;
using testing::Difference;
using testing::kTolerance;
using testing::Matrix;
using testing::SameBits;
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

// Rows of three kinds: logits about 1, about 30 and about 10,000; labels everywhere, some negative.
template <class T>
struct Chunk {
  static constexpr int64_t kRows = 60, kVocabulary = 1003;
  Chunk() : labels(kRows) {
    for (int64_t i = 0; i < kRows; ++i) {
      for (int64_t v = 0; v < kVocabulary; ++v) {
        logits(i, v) *= i % 3 == 0 ? 1 : i % 3 == 1 ? 30 : 1e4;
      }
      labels[i] = i % 7 == 3 ? -100 : i * 131 % kVocabulary;
    }
    labels[0] = 0;
    labels[1] = kVocabulary - 1;
  }
  Matrix<T> logits = Matrix<T>::Random(1, kRows, kVocabulary);
  std::vector<int32_t> labels;
};

template <class T>
struct Result {
  Matrix<T> losses{1, Chunk<T>::kRows}, gradients{Chunk<T>::kRows, Chunk<T>::kVocabulary};
};

constexpr double kScale = 0.25;

template <class T>
Result<double> FromTheDefinition(const Chunk<T>& chunk) {
  Result<double> result;
  for (int64_t i = 0; i < chunk.kRows; ++i) {
    const auto logit = [&](int64_t v) { return static_cast<double>(chunk.logits(i, v)); };
    double largest = logit(0), sum = 0;
    for (int64_t v = 1; v < chunk.kVocabulary; ++v) largest = std::max(largest, logit(v));
    for (int64_t v = 0; v < chunk.kVocabulary; ++v) sum += std::exp(logit(v) - largest);
    const int64_t label = chunk.labels[i];
    result.losses(0, i) = label < 0 ? 0 : std::log(sum) - (logit(label) - largest);
    for (int64_t v = 0; v < chunk.kVocabulary; ++v) {
      const double p = std::exp(logit(v) - largest) / sum;
      result.gradients(i, v) = label < 0 ? 0 : kScale * (p - (v == label));
    }
  }
  return result;
}

template <class T>
Result<T> FromCrossEntropy(Chunk<T>& chunk) {
  Result<T> result;
  Cpu()(CrossEntropy{.logits = chunk.logits.tensor(),
                     .labels = View(chunk.labels),
                     .d_logits = result.gradients.tensor(),
                     .scale = kScale,
                     .losses = result.losses.vector()});
  return result;
}

// What a group of ranks does, rank r with the tokens borders_r to borders_r+1 - 1; the all-reduces
// are taken in double. With `in_place`, gradients replace the chunk's logits too.
template <class T>
Result<T> FromShards(Chunk<T>& chunk, const std::vector<int64_t>& borders, bool in_place = false) {
  Cpu cpu;
  const int64_t rows = chunk.kRows;
  const int ranks = borders.size() - 1;
  const auto shard_of = [&](Matrix<T>& matrix, int rank) {
    return matrix.tensor().Columns(borders[rank], borders[rank + 1]);
  };
  Matrix<T> maximum(1, rows), sums(2, rows);
  std::vector<double> all_maximum(rows, -std::numeric_limits<double>::infinity());
  for (int rank = 0; rank < ranks; ++rank) {
    cpu(ShardMaximum{.logits = shard_of(chunk.logits, rank), .maximum = maximum.vector()});
    for (int64_t i = 0; i < rows; ++i) {
      all_maximum[i] = std::max<double>(all_maximum[i], maximum(0, i));
    }
  }
  for (int64_t i = 0; i < rows; ++i) maximum(0, i) = all_maximum[i];

  std::vector<double> all_sums(2 * rows, 0);
  for (int rank = 0; rank < ranks; ++rank) {
    cpu(ShardSums{.logits = shard_of(chunk.logits, rank),
                  .labels = View(chunk.labels),
                  .first_token = borders[rank],
                  .maximum = maximum.vector(),
                  .sums = sums.tensor()});
    for (int64_t i = 0; i < 2 * rows; ++i) all_sums[i] += sums(i / rows, i % rows);
  }
  for (int64_t i = 0; i < 2 * rows; ++i) sums(i / rows, i % rows) = all_sums[i];

  Result<T> result;
  for (int rank = 0; rank < ranks; ++rank) {
    const Matrix<T> before = result.losses;
    cpu(ShardCrossEntropy{.logits = shard_of(chunk.logits, rank),
                          .labels = View(chunk.labels),
                          .first_token = borders[rank],
                          .maximum = maximum.vector(),
                          .sums = sums.tensor(),
                          .d_logits = shard_of(in_place ? chunk.logits : result.gradients, rank),
                          .scale = kScale,
                          .losses = result.losses.vector()});
    if (rank > 0) {
      EXPECT_TRUE(SameBits(&before(0, 0), &result.losses(0, 0), rows)) << rank;
    }
  }
  if (in_place) result.gradients = chunk.logits;
  EXPECT_TRUE(sums.UntouchedBeyond(2));
  EXPECT_TRUE(result.gradients.UntouchedBeyond(rows));
  return result;
}

// Losses within `tolerance`, relative where they are above 1; each gradient within `tolerance` of
// its own size, a label's of what it is the difference of.
template <class T, class Reference>
void ExpectClose(const Chunk<T>& chunk, const Result<T>& found, const Result<Reference>& expected,
                 double tolerance) {
  for (int64_t i = 0; i < chunk.kRows; ++i) {
    const double loss = expected.losses(0, i);
    ASSERT_NEAR(found.losses(0, i), loss, tolerance * std::max(1.0, loss)) << i;
    for (int64_t v = 0; v < chunk.kVocabulary; ++v) {
      const double gradient = expected.gradients(i, v);
      const double size = std::abs(gradient) + (v == chunk.labels[i] ? kScale : 0);
      // Exp gives 0 for what is below 2e-38.
      ASSERT_NEAR(found.gradients(i, v), gradient, tolerance * size + 2e-38) << i << " " << v;
    }
  }
}

const std::vector<int64_t> kShards[] = {
    {0, 1003},
    {0, 400, 1003},
    {0, 1, 700, 1003},
    {0, 0, 131, 262, 262, 300, 1002, 1003, 1003},
};

TYPED_TEST(CrossEntropyTypedTest, ShardsAgreeWithTheDefinition) {
  using T = TypeParam;
  for (const std::vector<int64_t>& borders : kShards) {
    Chunk<T> chunk;
    const Result<double> expected = FromTheDefinition(chunk);
    ExpectClose(chunk, FromShards(chunk, borders), expected, kTolerance<T>);
  }
}

TYPED_TEST(CrossEntropyTypedTest, ShardsGiveWhatTheWholeGives) {
  using T = TypeParam;
  Chunk<T> chunk;
  const Result<T> whole = FromCrossEntropy(chunk);
  for (const std::vector<int64_t>& borders : kShards) {
    ExpectClose(chunk, FromShards(chunk, borders), whole, std::is_same_v<T, double> ? 1e-12 : 1e-6);
  }
}

TYPED_TEST(CrossEntropyTypedTest, OneShardHasTheBitsOfTheWhole) {
  using T = TypeParam;
  Chunk<T> chunk;
  const Result<T> whole = FromCrossEntropy(chunk), shard = FromShards(chunk, kShards[0]);
  EXPECT_TRUE(SameBits(&shard.losses(0, 0), &whole.losses(0, 0), chunk.kRows));
  for (int64_t i = 0; i < chunk.kRows; ++i) {
    EXPECT_TRUE(SameBits(&shard.gradients(i, 0), &whole.gradients(i, 0), chunk.kVocabulary)) << i;
  }
}

TYPED_TEST(CrossEntropyTypedTest, ShardGradientsMayReplaceLogits) {
  using T = TypeParam;
  Chunk<T> chunk;
  const Result<T> apart = FromShards(chunk, kShards[3]);
  const Result<T> in_place = FromShards(chunk, kShards[3], true);
  for (int64_t i = 0; i < chunk.kRows; ++i) {
    EXPECT_TRUE(SameBits(&in_place.gradients(i, 0), &apart.gradients(i, 0), chunk.kVocabulary));
  }
}

TYPED_TEST(CrossEntropyTypedTest, AShardMayHaveNoTokens) {
  using T = TypeParam;
  Cpu cpu;
  const Tensor none(nullptr, DTypeOf<T>, {3, 0});
  std::vector<int32_t> labels = {0, 7, -1};
  std::vector<T> maximum(3), losses(3);
  Matrix<T> sums(2, 3);
  cpu(ShardMaximum{.logits = none, .maximum = View(maximum)});
  EXPECT_EQ(maximum, std::vector<T>(3, -std::numeric_limits<T>::infinity()));
  maximum = {5, 6, 7};
  cpu(ShardSums{.logits = none,
                .labels = View(labels),
                .first_token = 7,
                .maximum = View(maximum),
                .sums = sums.tensor()});
  for (int64_t i = 0; i < 6; ++i) EXPECT_EQ(sums(i / 3, i % 3), 0);
  sums(0, 0) = sums(0, 1) = sums(0, 2) = 1;
  sums(1, 0) = -2;
  sums(1, 1) = -3;
  cpu(ShardCrossEntropy{.logits = none,
                        .labels = View(labels),
                        .first_token = 7,
                        .maximum = View(maximum),
                        .sums = sums.tensor(),
                        .d_logits = none,
                        .losses = View(losses)});
  EXPECT_EQ(losses, (std::vector<T>{2, 3, 0}));
}

TYPED_TEST(CrossEntropyTypedTest, ShardLossesNeedNoLogits) {
  using T = TypeParam;
  Cpu cpu;
  std::vector<int32_t> labels = {-100, 4};
  std::vector<T> losses(2);
  Matrix<T> sums(2, 2);
  sums(0, 0) = sums(1, 0) = -1;  // of a row that is not counted, and whose logarithm is NaN
  sums(0, 1) = 20;
  sums(1, 1) = -3;
  cpu(ShardCrossEntropy{.logits = {},
                        .labels = View(labels),
                        .maximum = {},
                        .sums = sums.tensor(),
                        .d_logits = {},
                        .losses = View(losses)});
  EXPECT_EQ(losses[0], 0);
  EXPECT_NEAR(losses[1], std::log(20.0) + 3, 10 * kTolerance<T>);
}

TYPED_TEST(CrossEntropyTypedTest, RowsOfAShardDoNotDependOnTheirNumberOrPlace) {
  using T = TypeParam;
  const int64_t tokens = 301;
  Matrix<T> logits = Matrix<T>::Random(1, 500, tokens, 3, 4);
  std::vector<int32_t> labels(500);
  for (int64_t i = 0; i < 500; ++i) labels[i] = i * 7 % 900;
  // Row 400's maximum, sums, loss and gradients, from the rows begin to end - 1.
  const auto row = [&](int threads, int64_t begin, int64_t end) {
    Cpu cpu(threads);
    const int64_t rows = end - begin;
    Matrix<T> maximum(1, rows), sums(2, rows), losses(1, rows), gradients(rows, tokens);
    const Tensor shard = logits.tensor().Rows(begin, end);
    const Tensor shard_labels = View(labels).Rows(begin, end);
    cpu(ShardMaximum{.logits = shard, .maximum = maximum.vector()});
    cpu(ShardSums{.logits = shard,
                  .labels = shard_labels,
                  .first_token = 1,
                  .maximum = maximum.vector(),
                  .sums = sums.tensor()});
    cpu(ShardCrossEntropy{.logits = shard,
                          .labels = shard_labels,
                          .first_token = 1,
                          .maximum = maximum.vector(),
                          .sums = sums.tensor(),
                          .d_logits = gradients.tensor(),
                          .losses = losses.vector()});
    const int64_t i = 400 - begin;
    std::vector<T> bits = {maximum(0, i), sums(0, i), sums(1, i), losses(0, i)};
    bits.insert(bits.end(), &gradients(i, 0), &gradients(i, 0) + tokens);
    return bits;
  };
  ASSERT_LT(labels[400], 1 + tokens);  // in the shard
  const std::vector<T> all = row(2, 0, 500);
  EXPECT_EQ(row(1, 400, 401), all);
  EXPECT_EQ(row(3, 397, 410), all);
}

TEST(CrossEntropyTest, ShardsCostWhatTheWholeCosts) {
  const Tensor logits(nullptr, DType::kFloat32, {64, 1000}), rows(nullptr, DType::kFloat32, {64});
  float gradients = 0;
  const Tensor d_logits(&gradients, DType::kFloat32, {64, 1000});
  const auto flops = [&](const Tensor& d_logits) {
    return ShardMaximum{.logits = logits, .maximum = rows}.cost().vector_flops +
           ShardSums{.logits = logits, .labels = {}, .maximum = {}, .sums = {}}
               .cost()
               .vector_flops +
           ShardCrossEntropy{.logits = logits,
                             .labels = {},
                             .maximum = {},
                             .sums = {},
                             .d_logits = d_logits,
                             .losses = {}}
               .cost()
               .vector_flops;
  };
  const auto whole = [&](const Tensor& d_logits) {
    return CrossEntropy{.logits = logits, .labels = {}, .d_logits = d_logits, .losses = {}}
        .cost()
        .vector_flops;
  };
  EXPECT_EQ(flops({}), whole({}));
  EXPECT_EQ(flops(d_logits), whole(d_logits));
  EXPECT_EQ(flops({}), 3 * 64000);
}

}  // namespace
}  // namespace fathom
