#include "kernels/experts.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "kernels/testing.h"

namespace fathom {
namespace {

using testing::Cpu;
using testing::Difference;
using testing::GradientError;
using testing::kTolerance;
using testing::Matrix;
using testing::SameBits;
using testing::View;

// Rows of [rows, columns] integers.
Tensor Rows(std::vector<int32_t>& elements, int64_t columns) {
  return View(elements).Reshape({static_cast<int64_t>(elements.size()) / columns, columns});
}

// Random in (0, 1), a function of `element`.
double Uniform(uint64_t element) { return 0.5 + 0.5 * std::erf(NormalAt(1, 0, element)); }

// The choice by its definition: a stable sort of each row, the highest first.
template <class T>
std::vector<int32_t> LargestOfEachRow(const Matrix<T>& scores, const std::vector<T>& bias,
                                      int64_t routed, int64_t rows) {
  std::vector<int32_t> chosen;
  for (int64_t i = 0; i < rows; ++i) {
    std::vector<int32_t> order(scores.columns);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return scores(i, a) + bias[a] > scores(i, b) + bias[b];
    });
    std::sort(order.begin(), order.begin() + routed);
    chosen.insert(chosen.end(), order.begin(), order.begin() + routed);
  }
  return chosen;
}

template <class T>
class ExpertsTypedTest : public ::testing::Test {};
using Types = ::testing::Types<float, double>;
TYPED_TEST_SUITE(ExpertsTypedTest, Types);

TYPED_TEST(ExpertsTypedTest, ScoresAreSigmoidsOrSoftmaxes) {
  using T = TypeParam;
  Cpu cpu;
  std::vector<int32_t> count = {250};
  for (const Scoring scoring : {Scoring::kSigmoid, Scoring::kSoftmax}) {
    for (const int64_t experts : {1, 7, 64, 131}) {
      Matrix<T> logits = Matrix<T>::Random(1, 300, experts, 3, 4), scores(300, experts, 1);
      logits(3, 0) = 90;  // e^90 is no float
      logits(4, 0) = -90;
      cpu(ExpertScores{.logits = logits.tensor(),
                       .scoring = scoring,
                       .scores = scores.tensor(),
                       .count = View(count)});
      Matrix<double> expected(250, experts);
      for (int64_t i = 0; i < 250; ++i) {
        double largest = logits(i, 0), sum = 0;
        for (int64_t e = 0; e < experts; ++e) largest = std::max<double>(largest, logits(i, e));
        for (int64_t e = 0; e < experts; ++e) sum += std::exp(logits(i, e) - largest);
        for (int64_t e = 0; e < experts; ++e) {
          const double logit = logits(i, e);
          expected(i, e) = scoring == Scoring::kSoftmax ? std::exp(logit - largest) / sum
                                                        : 1 / (1 + std::exp(-logit));
        }
      }
      EXPECT_LT(Difference(scores, expected), kTolerance<T>) << experts;
      EXPECT_TRUE(scores.UntouchedBeyond(250));
      cpu(ExpertScores{.logits = logits.tensor(), .scoring = scoring, .scores = logits.tensor()});
      for (int64_t i = 0; i < 250; ++i) {
        EXPECT_TRUE(SameBits(&logits(i, 0), &scores(i, 0), experts));
      }
    }
  }
}

TYPED_TEST(ExpertsTypedTest, ANanAmongTheLogitsIsSeen) {
  using T = TypeParam;
  Cpu cpu;
  Matrix<T> logits = Matrix<T>::Random(1, 1, 40), scores(1, 40);
  logits(0, 17) = std::nan("");
  cpu(ExpertScores{
      .logits = logits.tensor(), .scoring = Scoring::kSoftmax, .scores = scores.tensor()});
  EXPECT_TRUE(std::isnan(scores(0, 3)));
  cpu(ExpertScores{
      .logits = logits.tensor(), .scoring = Scoring::kSigmoid, .scores = scores.tensor()});
  EXPECT_TRUE(std::isnan(scores(0, 17)));
  EXPECT_FALSE(std::isnan(scores(0, 3)));
}

TYPED_TEST(ExpertsTypedTest, ChoosesTheLargestOfEachRow) {
  using T = TypeParam;
  for (const auto& [rows, experts, routed] : std::vector<std::array<int64_t, 3>>{
           {400, 64, 6}, {300, 128, 6}, {200, 8, 3}, {3, 50, 7}, {9, 5, 5}, {6, 1, 1}}) {
    Matrix<T> scores(rows, experts);
    std::vector<T> bias(experts);
    // Rounded, so that many tie.
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t e = 0; e < experts; ++e) {
        scores(i, e) = std::round(6 * NormalAt(1, 0, i * experts + e)) / 4;
      }
    }
    for (int64_t e = 0; e < experts; ++e) bias[e] = std::round(4 * NormalAt(2, 0, e)) / 4;
    const int64_t used = rows - 1;
    std::vector<int32_t> count = {static_cast<int32_t>(used)};
    std::vector<int32_t> expected = LargestOfEachRow(scores, bias, routed, used);
    expected.resize(rows * routed, -1);  // rows that are not in use stay
    for (const int threads : {1, 2, 8}) {
      Cpu cpu(threads);
      std::vector<int32_t> chosen(rows * routed, -1);
      cpu(SelectExperts{.scores = scores.tensor(),
                        .bias = View(bias),
                        .experts = Rows(chosen, routed),
                        .count = View(count)});
      EXPECT_EQ(chosen, expected) << experts << " experts, " << threads << " threads";
    }
  }
}

TYPED_TEST(ExpertsTypedTest, ChoosesAmongTiesAndOddValues) {
  using T = TypeParam;
  constexpr T kNan = std::numeric_limits<T>::quiet_NaN();
  constexpr T kInfinity = std::numeric_limits<T>::infinity();
  Cpu cpu;
  const auto choose = [&](std::vector<T> scores, std::vector<T> bias, int64_t routed) {
    std::vector<int32_t> chosen(routed, -1);
    const int64_t experts = scores.size();
    cpu(SelectExperts{.scores = View(scores).Reshape({1, experts}),
                      .bias = bias.empty() ? Tensor() : View(bias),
                      .experts = Rows(chosen, routed)});
    return chosen;
  };
  using Ids = std::vector<int32_t>;
  EXPECT_EQ(choose({0.5, 0.5}, {10, -10}, 1), (Ids{0}));
  EXPECT_EQ(choose({0.5, 0.5}, {-10, 10}, 1), (Ids{1}));
  EXPECT_EQ(choose({0.2, 0.9, 0.4}, {}, 2), (Ids{1, 2}));
  EXPECT_EQ(choose({1, 2, 3, 3}, {2, 1, 0, 0}, 2), (Ids{0, 1}));  // all sums are 3
  EXPECT_EQ(choose({-1, T(-0.0), 0, 0}, {}, 2), (Ids{1, 2}));
  EXPECT_EQ(choose({0, T(-0.0), 0, -1}, {}, 2), (Ids{0, 1}));
  EXPECT_EQ(choose({kInfinity, 1, -kNan, 2}, {}, 1), (Ids{2}));
  EXPECT_EQ(choose({kInfinity, 1, kNan, 2}, {0, 0, 5, 0}, 2), (Ids{0, 2}));
  EXPECT_EQ(choose({1, 1, 1, 1}, {0, kNan, 0, kNan}, 3), (Ids{0, 1, 3}));
}

TYPED_TEST(ExpertsTypedTest, AZeroRouterChoosesTheLowestExperts) {
  using T = TypeParam;
  const int64_t rows = 700, experts = 128, routed = 6;
  std::vector<int32_t> expected;
  for (int64_t i = 0; i < rows; ++i) {
    for (int32_t e = 0; e < routed; ++e) expected.push_back(e);
  }
  Matrix<T> logits(rows, experts, 0), scores(rows, experts), first_weights(rows, routed);
  std::fill(logits.data.begin(), logits.data.end(), T(0));
  std::vector<T> bias(experts, 0);
  for (const int threads : {1, 2, 8}) {
    Cpu cpu(threads);
    for (int run = 0; run < 40; ++run) {
      const Scoring scoring = run % 2 == 0 ? Scoring::kSigmoid : Scoring::kSoftmax;
      std::vector<int32_t> chosen(rows * routed, -1);
      Matrix<T> weights(rows, routed);
      cpu(ExpertScores{.logits = logits.tensor(), .scoring = scoring, .scores = scores.tensor()});
      cpu(SelectExperts{
          .scores = scores.tensor(), .bias = View(bias), .experts = Rows(chosen, routed)});
      cpu(ExpertWeights{
          .scores = scores.tensor(), .experts = Rows(chosen, routed), .weights = weights.tensor()});
      ASSERT_EQ(chosen, expected);
      if (threads == 1 && run == 0) first_weights = weights;
      for (int64_t i = 0; i < rows; ++i) {
        ASSERT_NEAR(weights(i, 0), 1.0 / routed, kTolerance<T>);
        if (scoring != Scoring::kSigmoid) continue;
        ASSERT_TRUE(SameBits(&weights(i, 0), &first_weights(i, 0), routed));
      }
    }
  }
}

TYPED_TEST(ExpertsTypedTest, WeightsShareOutTheChosenScores) {
  using T = TypeParam;
  Cpu cpu;
  const int64_t rows = 90, experts = 20, routed = 3;
  Matrix<T> scores(rows, experts), weights(rows, routed);
  std::vector<int32_t> chosen, count = {80};
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t e = 0; e < experts; ++e) scores(i, e) = Uniform(i * experts + e);
    for (const int64_t step : {0, 3, 9}) chosen.push_back((i + step) % 10);
  }
  for (int64_t e = 0; e < experts; ++e) scores(7, e) = 0;
  cpu(ExpertWeights{.scores = scores.tensor(),
                    .experts = Rows(chosen, routed),
                    .weights = weights.tensor(),
                    .count = View(count)});
  EXPECT_TRUE(weights.UntouchedBeyond(80));
  for (int64_t i = 0; i < 80; ++i) {
    const int32_t* ids = &chosen[i * routed];
    const double sum = 1e-20 + scores(i, ids[0]) + scores(i, ids[1]) + scores(i, ids[2]);
    for (int64_t j = 0; j < routed; ++j) {
      EXPECT_NEAR(weights(i, j), scores(i, ids[j]) / sum, kTolerance<T>);
    }
  }
  EXPECT_EQ(weights(7, 0), 0);

  // What the bias chose has its score's weight, of one expert all.
  std::vector<T> half = {0.5, 0.5}, weight = {0};
  std::vector<int32_t> zero = {0};
  cpu(ExpertWeights{.scores = View(half).Reshape({1, 2}),
                    .experts = Rows(zero, 1),
                    .weights = View(weight).Reshape({1, 1})});
  EXPECT_EQ(weight[0], 1);
}

TYPED_TEST(ExpertsTypedTest, CountsOfCallTotalAndSequences) {
  using T = TypeParam;
  Cpu cpu;
  // Rows 3 to 8 of two sequences of 5; the last is not in use.
  std::vector<int32_t> experts = {0, 2, 1, 2, 0, 2, 0, 3, 1, 2, 2, 3}, count = {5};
  std::vector<int32_t> counts(5, -1);
  std::vector<T> total = {10, 0, 0, 0, 7}, of_sequence(10, -1);
  cpu(CountExperts{.experts = Rows(experts, 2),
                   .count = View(count),
                   .counts = View(counts),
                   .total = View(total),
                   .sequence_counts = View(of_sequence).Reshape({2, 5}),
                   .first_row = 3,
                   .sequence_rows = 5});
  EXPECT_EQ(counts, (std::vector<int32_t>{3, 2, 4, 1, 0}));
  EXPECT_EQ(total, (std::vector<T>{13, 2, 4, 1, 7}));
  EXPECT_EQ(of_sequence, (std::vector<T>{1, 1, 2, 0, 0, 2, 1, 2, 1, 0}));
  cpu(CountExperts{.experts = Rows(experts, 2), .counts = View(counts)});
  EXPECT_EQ(counts, (std::vector<int32_t>{3, 2, 5, 2, 0}));
  EXPECT_EQ(total[0], 13);
}

TEST(ExpertsTest, MoreExpertsThanRowsAndNoRows) {
  Cpu cpu;
  std::vector<int32_t> counts(100, -1), experts = {98, 99}, none;
  cpu(CountExperts{.experts = Rows(experts, 2), .counts = View(counts)});
  EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), 0), 2);
  EXPECT_EQ(counts[98] + counts[99], 2);
  cpu(CountExperts{.experts = Tensor(none.data(), DType::kInt32, {0, 2}), .counts = View(counts)});
  EXPECT_EQ(counts, std::vector<int32_t>(100, 0));
}

TEST(ExpertsDeathTest, ExpertsThatDoNotExist) {
  Cpu cpu(1);
  std::vector<int32_t> counts(4), experts = {1, 4};
  EXPECT_DEATH(cpu(CountExperts{.experts = Rows(experts, 2), .counts = View(counts)}),
               "expert 4 of 4");
}

// Random scores in (0, 1) of the rows of several sequences, with their choice.
template <class T>
struct Routing {
  static constexpr int64_t kExperts = 37, kRouted = 4, kSequenceRows = 50, kSequences = 3;
  static constexpr int64_t kRows = kSequences * kSequenceRows;

  Routing()
      : scores(kRows, kExperts), chosen(kRows * kRouted), sequence_counts(kSequences, kExperts) {
    Cpu cpu;
    for (int64_t i = 0; i < kRows; ++i) {
      for (int64_t e = 0; e < kExperts; ++e) {
        scores(i, e) = static_cast<T>(0.05 + 0.9 * Uniform(i * kExperts + e));
      }
    }
    std::vector<int32_t> counts(kExperts);
    cpu(SelectExperts{.scores = scores.tensor(), .experts = Rows(chosen, kRouted)});
    cpu(CountExperts{.experts = Rows(chosen, kRouted),
                     .counts = View(counts),
                     .sequence_counts = sequence_counts.tensor(),
                     .sequence_rows = kSequenceRows});
  }

  // The balance loss of rows begin to end - 1 by its definition, of weight 1.
  double BalanceLossOf(int64_t begin, int64_t end) const {
    double loss = 0;
    for (int64_t i = begin; i < end; ++i) {
      double sum = 0;
      for (int64_t e = 0; e < kExperts; ++e) sum += scores(i, e);
      for (int64_t e = 0; e < kExperts; ++e) {
        const double share = static_cast<double>(kExperts) / (kRouted * kSequenceRows) *
                             sequence_counts(i / kSequenceRows, e);
        loss += share * scores(i, e) / sum;
      }
    }
    return loss;
  }

  Matrix<T> scores;
  std::vector<int32_t> chosen;
  Matrix<T> sequence_counts;
};

TYPED_TEST(ExpertsTypedTest, BalanceLossFollowsTheFormula) {
  using T = TypeParam;
  Routing<T> routing;
  const int64_t rows = routing.kRows;
  std::vector<double> one_call(2);
  for (const int threads : {1, 2}) {
    Cpu cpu(threads);
    std::vector<double> loss = {1};
    cpu(BalanceLoss{.scores = routing.scores.tensor(),
                    .sequence_counts = routing.sequence_counts.tensor(),
                    .routed = routing.kRouted,
                    .sequence_rows = routing.kSequenceRows,
                    .weight = 0.5,
                    .loss = View(loss)});
    EXPECT_NEAR(loss[0], 1 + 0.5 * routing.BalanceLossOf(0, rows), rows * kTolerance<T>);
    one_call[threads - 1] = loss[0];
  }
  EXPECT_EQ(one_call[0], one_call[1]);

  // Any split of the rows, into calls or windows, adds up to the same.
  Cpu cpu;
  std::vector<double> loss = {1};
  for (const auto& [begin, end] :
       std::vector<std::pair<int64_t, int64_t>>{{0, 20}, {20, 70}, {70, 70}, {70, rows}}) {
    cpu(BalanceLoss{.scores = routing.scores.tensor().Rows(begin, end),
                    .sequence_counts = routing.sequence_counts.tensor(),
                    .routed = routing.kRouted,
                    .first_row = begin,
                    .sequence_rows = routing.kSequenceRows,
                    .weight = 0.25,
                    .loss = View(loss)});
    cpu(BalanceLoss{.scores = routing.scores.tensor(),
                    .sequence_counts = routing.sequence_counts.tensor(),
                    .routed = routing.kRouted,
                    .sequence_rows = routing.kSequenceRows,
                    .weight = 0.25,
                    .loss = View(loss),
                    .balance_begin = begin,
                    .balance_end = end});
  }
  EXPECT_NEAR(loss[0], one_call[0], rows * kTolerance<double>);
}

TEST(ExpertsTest, AnEvenLoadHasBalanceLossOne) {
  Cpu cpu;
  const int64_t experts = 8, rows = 16;
  Matrix<double> scores(rows, experts), counts(1, experts);
  for (int64_t e = 0; e < experts; ++e) {
    counts(0, e) = rows * 2.0 / experts;
    for (int64_t i = 0; i < rows; ++i) scores(i, e) = Uniform(i * experts + e);
  }
  for (int64_t e = 0; e < experts; ++e) scores(5, e) = 0;  // adds nothing
  std::vector<double> loss = {0};
  cpu(BalanceLoss{.scores = scores.tensor(),
                  .sequence_counts = counts.tensor(),
                  .routed = 2,
                  .sequence_rows = rows,
                  .weight = 1.0 / (rows - 1),
                  .loss = View(loss)});
  EXPECT_NEAR(loss[0], 1, 1e-14);
}

// The gradient of a loss that sums weights times d_weights, and the balance loss of a window.
void ExpectLogitGradient(Scoring scoring, bool through_weights, double balance_weight) {
  using R = Routing<double>;
  R routing;
  Cpu cpu;
  const int64_t first_row = 30, rows = 40, begin = 7, end = 33;  // of two sequences
  Matrix<double> logits = Matrix<double>::Random(3, rows, R::kExperts);
  Matrix<double> scores(rows, R::kExperts), weights(rows, R::kRouted);
  Matrix<double> d_weights = Matrix<double>::Random(4, rows, R::kRouted);
  Matrix<double> d_logits(rows, R::kExperts);
  const Tensor chosen = Rows(routing.chosen, R::kRouted).Rows(first_row, first_row + rows);
  const auto forward = [&] {
    cpu(ExpertScores{.logits = logits.tensor(), .scoring = scoring, .scores = scores.tensor()});
    cpu(ExpertWeights{.scores = scores.tensor(), .experts = chosen, .weights = weights.tensor()});
  };
  forward();
  cpu(ExpertLogitGradient{
      .scoring = scoring,
      .scores = scores.tensor(),
      .experts = chosen,
      .weights = weights.tensor(),
      .d_weights = through_weights ? d_weights.tensor() : Tensor(),
      .sequence_counts = balance_weight != 0 ? routing.sequence_counts.tensor() : Tensor(),
      .routed = R::kRouted,
      .first_row = first_row,
      .sequence_rows = R::kSequenceRows,
      .balance_weight = balance_weight,
      .d_logits = d_logits.tensor(),
      .balance_begin = begin,
      .balance_end = end});
  const auto loss = [&] {
    forward();
    std::vector<double> sum = {0};
    cpu(BalanceLoss{.scores = scores.tensor(),
                    .sequence_counts = routing.sequence_counts.tensor(),
                    .routed = R::kRouted,
                    .first_row = first_row,
                    .sequence_rows = R::kSequenceRows,
                    .weight = balance_weight,
                    .loss = View(sum),
                    .balance_begin = begin,
                    .balance_end = end});
    return sum[0] + (through_weights ? testing::InnerProduct(weights, d_weights) : 0);
  };
  EXPECT_LT(GradientError(logits, d_logits, loss), 1e-7)
      << static_cast<int>(scoring) << " " << through_weights << " " << balance_weight;
}

TEST(ExpertsTest, LogitGradientAgreesWithFiniteDifferences) {
  for (const Scoring scoring : {Scoring::kSigmoid, Scoring::kSoftmax}) {
    ExpectLogitGradient(scoring, true, 0);
    ExpectLogitGradient(scoring, false, 0.7);
    ExpectLogitGradient(scoring, true, 0.7);
  }
}

TYPED_TEST(ExpertsTypedTest, LogitGradientOfRowsInUse) {
  using T = TypeParam;
  using R = Routing<T>;
  R routing;
  Routing<double> exact;
  Cpu cpu;
  std::vector<int32_t> count = {120};
  const auto gradient = [&](auto& of, auto& d_weights, auto& d_logits, auto& weights) {
    const Tensor chosen = Rows(routing.chosen, R::kRouted);
    cpu(ExpertWeights{
        .scores = of.scores.tensor(), .experts = chosen, .weights = weights.tensor()});
    cpu(ExpertLogitGradient{.scores = of.scores.tensor(),
                            .experts = chosen,
                            .weights = weights.tensor(),
                            .d_weights = d_weights.tensor(),
                            .sequence_counts = of.sequence_counts.tensor(),
                            .routed = R::kRouted,
                            .sequence_rows = R::kSequenceRows,
                            .balance_weight = 0.3,
                            .d_logits = d_logits.tensor(),
                            .count = View(count)});
  };
  Matrix<T> d_weights = Matrix<T>::Random(2, R::kRows, R::kRouted);
  Matrix<T> d_logits(R::kRows, R::kExperts), weights(R::kRows, R::kRouted);
  Matrix<double> exact_d_weights(R::kRows, R::kRouted), exact_weights(R::kRows, R::kRouted);
  Matrix<double> expected(R::kRows, R::kExperts);
  for (int64_t i = 0; i < R::kRows; ++i) {
    for (int64_t j = 0; j < R::kRouted; ++j) exact_d_weights(i, j) = d_weights(i, j);
  }
  gradient(routing, d_weights, d_logits, weights);
  gradient(exact, exact_d_weights, expected, exact_weights);
  EXPECT_LT(Difference(d_logits, expected, 120), kTolerance<T>);
  EXPECT_TRUE(d_logits.UntouchedBeyond(120));

  // Nothing to learn from is no gradient.
  cpu(ExpertLogitGradient{.scores = routing.scores.tensor(),
                          .experts = Rows(routing.chosen, R::kRouted),
                          .weights = weights.tensor(),
                          .d_logits = d_logits.tensor()});
  for (int64_t i = 0; i < R::kRows; ++i) {
    for (int64_t e = 0; e < R::kExperts; ++e) ASSERT_EQ(d_logits(i, e), 0);
  }
}

TYPED_TEST(ExpertsTypedTest, LoadOfEvenUnevenAndNoCounts) {
  using T = TypeParam;
  Cpu cpu;
  const auto load = [&](std::vector<T> counts) {
    std::vector<double> violation = {-1}, entropy = {-1};
    cpu(ExpertLoad{.counts = View(counts), .violation = View(violation), .entropy = View(entropy)});
    return std::pair(violation[0], entropy[0]);
  };
  EXPECT_EQ(load({5, 5, 5, 5}).first, 0);
  EXPECT_NEAR(load({5, 5, 5, 5}).second, 1, 1e-15);
  EXPECT_EQ(load({0, 12, 0, 0}), std::pair(3.0, 0.0));
  const auto [violation, entropy] = load({1, 2, 1, 0});
  EXPECT_EQ(violation, 1);
  EXPECT_NEAR(entropy, 1.5 * std::log(2.0) / std::log(4.0), 1e-15);
  EXPECT_EQ(load({0, 0}), std::pair(0.0, 1.0));
  EXPECT_EQ(load({9}), std::pair(0.0, 1.0));
}

}  // namespace
}  // namespace fathom
