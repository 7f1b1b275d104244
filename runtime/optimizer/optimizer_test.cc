#include "runtime/optimizer/optimizer.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/cpu_device.h"
#include "core/random.h"
#include "kernels/elementwise.h"
#include "kernels/optimizer.h"

namespace fathom {
namespace {

// A matrix [64, 16], an embedding, a norm, a router and a scale, all of known values.
class OptimizerTest : public ::testing::Test {
 protected:
  OptimizerTest() : device_(2), stream_(device_.NewStream()), arena_(device_, 1 << 20) {
    matrix_ = table_.Add({"matrix", {64, 16}, ParameterRole::kMatrix});
    embedding_ = table_.Add({"embedding", {5, 16}, ParameterRole::kEmbedding});
    norm_ = table_.Add({"norm", {16}, ParameterRole::kNorm});
    router_ = table_.Add({"router", {16}, ParameterRole::kRouter});
    scale_ = table_.Add({"scale", {}, ParameterRole::kScale});
    FATHOM_CHECK(table_.Allocate(device_, DType::kFloat64, true).ok());
    Launch(*stream_, Fill{.value = 0, .y = table_.gradients()});
    for (const Parameter& parameter : table_.all()) {
      for (int64_t i = 0; i < parameter.weight.elements(); ++i) {
        parameter.weight.data<double>()[i] = NormalAt(3, HashName(parameter.spec.name), i);
      }
    }
    totals_ = arena_.New(DType::kFloat64, {2});
    totals_.data<double>()[0] = 1;
  }

  void MakeOptimizer(const OptimizerConfig& config) {
    auto optimizer = Optimizer::Create(config, {}, table_, *groups_, device_, *stream_);
    FATHOM_CHECK(optimizer.ok());
    optimizer_ = *std::move(optimizer);
  }

  static std::vector<double> Values(const Tensor& tensor) {
    return {tensor.data<double>(), tensor.data<double>() + tensor.elements()};
  }

  CpuDevice device_;
  std::unique_ptr<Stream> stream_;
  Arena arena_;
  ParameterTable table_;
  std::unique_ptr<RankGroups> groups_ = RankGroups::Alone();
  const Parameter *matrix_, *embedding_, *norm_, *router_, *scale_;
  std::unique_ptr<Optimizer> optimizer_;
  Tensor totals_;  // the loss, and room for the squared norm
};

TEST_F(OptimizerTest, DecayAloneShrinksMatricesAndNothingElse) {
  MakeOptimizer({});
  std::map<std::string, std::vector<double>> before;
  for (const Parameter& parameter : table_.all()) {
    before[parameter.spec.name] = Values(parameter.weight);
  }
  ASSERT_TRUE(optimizer_->Step(*stream_, arena_, /*learning_rate=*/0.1, totals_).ok());
  for (const Parameter* decayed : {matrix_, embedding_}) {
    const std::vector<double> after = Values(decayed->weight);
    for (size_t i = 0; i < after.size(); ++i) {
      EXPECT_NEAR(after[i], 0.99 * before[decayed->spec.name][i], 1e-15);
    }
  }
  for (const Parameter* kept : {norm_, router_, scale_}) {
    EXPECT_EQ(Values(kept->weight), before[kept->spec.name]) << kept->spec.name;
  }
}

// The update has singular values near 1, so its RMS is 0.2 * sqrt(max) * sqrt(min / (rows *
// columns)) = 0.2, times the learning rate.
TEST_F(OptimizerTest, MuonsUpdateHasTheDocumentedSize) {
  OptimizerConfig config;
  config.weight_decay = 0;
  MakeOptimizer(config);
  for (int64_t i = 0; i < 64 * 16; ++i) {
    matrix_->gradient.data<double>()[i] = NormalAt(4, 9, i);
  }
  const std::vector<double> before = Values(matrix_->weight);
  ASSERT_TRUE(optimizer_->Step(*stream_, arena_, 0.5, totals_).ok());
  double sum = 0;
  for (int64_t i = 0; i < 64 * 16; ++i) {
    sum += std::pow(matrix_->weight.data<double>()[i] - before[i], 2);
  }
  const double rms = std::sqrt(sum / (64 * 16));
  EXPECT_GT(rms, 0.5 * 0.2 * 0.7);  // five steps bring singular values to 0.7 ... 1.2
  EXPECT_LT(rms, 0.5 * 0.2 * 1.2);
}

// Gradients 100 and 1 give updates of the same size: each matrix is orthogonalised for itself.
TEST_F(OptimizerTest, MuonForgetsTheScaleOfTheGradient) {
  const Tensor x = arena_.New(DType::kFloat64, {2, 6, 9});
  for (int64_t i = 0; i < 54; ++i) {
    x.data<double>()[i] = NormalAt(4, 9, i);
    x.data<double>()[54 + i] = 100 * NormalAt(4, 9, i);
  }
  NewtonSchulz(*stream_, arena_, x, 5);
  for (int64_t i = 0; i < 54; ++i) {
    EXPECT_NEAR(x.data<double>()[i], x.data<double>()[54 + i], 1e-6);
  }
}

// On a diagonal matrix each singular value goes its own way: s -> a s + b s^3 + c s^5.
TEST_F(OptimizerTest, NewtonSchulzOfADiagonalMatrixIsItsPolynomial) {
  for (bool tall : {false, true}) {
    const int64_t rows = tall ? 5 : 3, columns = tall ? 3 : 5;
    const Tensor x = arena_.New(DType::kFloat64, {1, rows, columns});
    Launch(*stream_, Fill{.value = 0, .y = x});
    const double start[3] = {3, -2, 0.5};
    for (int i = 0; i < 3; ++i) x.data<double>()[i * columns + i] = start[i];
    NewtonSchulz(*stream_, arena_, x, 5);
    const double norm = std::sqrt(9 + 4 + 0.25) + 1e-7;
    for (int i = 0; i < 3; ++i) {
      double s = start[i] / norm;
      for (int step = 0; step < 5; ++step) {
        s = 3.4445 * s - 4.7750 * std::pow(s, 3) + 2.0315 * std::pow(s, 5);
      }
      EXPECT_NEAR(x.data<double>()[i * columns + i], s, 1e-12);
    }
    EXPECT_EQ(x.data<double>()[1], 0);
  }
}

TEST_F(OptimizerTest, StateIsNamedAndComplete) {
  MakeOptimizer({});
  std::vector<std::string> names;
  for (const auto& state : optimizer_->state()) names.push_back(state.name);
  EXPECT_EQ(names,
            (std::vector<std::string>{"matrix.momentum", "embedding.first", "embedding.second",
                                      "norm.first", "norm.second", "router.first", "router.second",
                                      "scale.first", "scale.second"}));
}

TEST_F(OptimizerTest, ALossThatIsNotFiniteChangesNothing) {
  MakeOptimizer({});
  for (int64_t i = 0; i < table_.gradients().elements(); ++i) {
    table_.gradients().data<double>()[i] = 0.1 * NormalAt(4, 9, i);
  }
  ASSERT_TRUE(optimizer_->Step(*stream_, arena_, 0.1, totals_).ok());
  std::vector<std::vector<double>> before;
  for (const Parameter& parameter : table_.all()) before.push_back(Values(parameter.weight));
  for (const auto& state : optimizer_->state()) before.push_back(Values(state.tensor));
  totals_.data<double>()[0] = NAN;
  ASSERT_TRUE(optimizer_->Step(*stream_, arena_, 0.1, totals_).ok());
  std::vector<std::vector<double>> after;
  for (const Parameter& parameter : table_.all()) after.push_back(Values(parameter.weight));
  for (const auto& state : optimizer_->state()) after.push_back(Values(state.tensor));
  EXPECT_EQ(before, after);
  EXPECT_EQ(optimizer_->step().data<double>()[kApply], 0);
  EXPECT_EQ(optimizer_->step().data<double>()[kAdamStep], 1);
}

}  // namespace
}  // namespace fathom
