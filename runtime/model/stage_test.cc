#include "runtime/model/stage.h"

#include <gtest/gtest.h>

#include <cmath>

#include "runtime/model/testing.h"

namespace fathom {
namespace {

using ::fathom::testing::DenseLayers;
using ::fathom::testing::MoeLayers;
using ::fathom::testing::RandomBatch;
using ::fathom::testing::SmallConfig;
using ::fathom::testing::SparseLayers;
using ::fathom::testing::SparseMoeLayers;
using ::fathom::testing::TestModel;

struct NamedModel {
  std::string name;
  ModelConfig config;
};

void PrintTo(const NamedModel& model, std::ostream* out) { *out << model.name; }

std::vector<NamedModel> Models() {
  const std::vector<PlanSegment> mixed = {DenseLayers(1), SparseLayers(2, 3), DenseLayers(1),
                                          SparseLayers(1, 2), DenseLayers(1)};
  ModelConfig raw = SmallConfig(mixed, Gate::kXMod);
  raw.alignment = Alignment::kRaw;
  ModelConfig no_bias = SmallConfig(mixed, Gate::kXMod);
  no_bias.tau = 0;
  ModelConfig strong_bias = SmallConfig(mixed, Gate::kXMod);
  strong_bias.tau = 0.5;
  strong_bias.increment = 2;
  ModelConfig softmax = SmallConfig({MoeLayers(3)}, Gate::kXMod);
  softmax.scoring = Scoring::kSoftmax;
  softmax.shared = 0;
  const std::vector<PlanSegment> mixture = {MoeLayers(1), SparseLayers(1, 3), SparseMoeLayers(1, 2),
                                            DenseLayers(1), MoeLayers(1)};
  const std::vector<PlanSegment> no_prefix = {SparseLayers(5, 3), DenseLayers(1)};
  return {
      {"Dense", SmallConfig({DenseLayers(6)}, Gate::kXMod)},
      {"Mod", SmallConfig(mixed, Gate::kMod)},
      {"XMod", SmallConfig(mixed, Gate::kXMod)},
      {"XModRaw", raw},
      {"XModWithoutBias", no_bias},
      {"XModStrongBias", strong_bias},
      {"NoGate", SmallConfig(mixed, Gate::kNone)},
      {"NoPrefix", SmallConfig(no_prefix, Gate::kXMod)},
      {"Moe", SmallConfig({MoeLayers(3)}, Gate::kXMod)},
      {"MoeSoftmaxNoShared", softmax},
      {"MoeXMod", SmallConfig(mixture, Gate::kXMod)},
      {"MoeMod", SmallConfig(mixture, Gate::kMod)},
      {"NoAnchor", SmallConfig({DenseLayers(1), SparseLayers(5, 3)}, Gate::kXMod, 2)},
  };
}

class EveryModel : public ::testing::TestWithParam<NamedModel> {};

INSTANTIATE_TEST_SUITE_P(Stage, EveryModel, ::testing::ValuesIn(Models()),
                         [](const auto& info) { return info.param.name; });

std::vector<std::vector<int32_t>> ReplayOf(const ModelConfig& config,
                                           const TestModel::Result& result) {
  std::vector<std::vector<int32_t>> replay(config.plan.layers.size());
  size_t next = 0;
  for (size_t layer = 0; layer < replay.size(); ++layer) {
    if (config.plan.layers[layer].spec.kind == LayerKind::kSparse) {
      replay[layer] = result.selections[next++];
    }
  }
  return replay;
}

// Whether a parameter is of an expert that no row chose; `gradients` of all parameters, and in
// place of those of the experts' biases their rows.
bool IsIdleExpert(const std::string& name,
                  const std::map<std::string, std::vector<double>>& gradients) {
  const size_t begin = name.find(".mlp.experts.");
  if (begin == std::string::npos) return false;
  const int expert = std::stoi(name.substr(begin + std::string(".mlp.experts.").size()));
  return gradients.at(name.substr(0, begin) + ".mlp.gate.e_score_correction_bias")[expert] == 0;
}

// Every parameter against central differences in double, the selection held: all elements of small
// tensors, elements all over large ones.
TEST_P(EveryModel, GradientsMatchFiniteDifferences) {
  const ModelConfig& config = GetParam().config;
  constexpr int64_t kLength = 9;
  TestModel model(config, DType::kFloat64, kLength);
  const HostBatch batch = RandomBatch(2, kLength, config.vocabulary, 3);
  TestModel::Options options{.routing_coefficient = 0.3, .balance_coefficient = 0.2};
  const TestModel::Result first = model.Run(batch, options);
  options.replay = ReplayOf(config, first);
  if (config.plan.has_experts()) options.expert_replay = first.experts;
  ASSERT_EQ(model.Run(batch, options).objective(), first.objective());

  std::map<std::string, std::vector<double>> gradients;
  for (const Parameter& parameter : model.table().all()) {
    gradients[parameter.spec.name] = model.Gradient(parameter.spec.name);
  }
  options.training = true;  // the auxiliary loss is only computed in training
  for (const Parameter& parameter : model.table().all()) {
    if (parameter.spec.role == ParameterRole::kExpertBias) continue;  // not trained by gradients
    const std::string& name = parameter.spec.name;
    std::vector<double> weight = model.Weight(name);
    double largest = 0;
    for (double g : gradients[name]) largest = std::max(largest, std::abs(g));
    const size_t stride = weight.size() > 60 ? weight.size() / 13 : 1;
    double worst = 0;
    for (size_t i = 0; i < weight.size(); i += stride) {
      constexpr double kStep = 1e-5;
      const double centre = weight[i];
      weight[i] = centre + kStep;
      model.SetWeight(name, weight);
      const double above = model.Run(batch, options).objective();
      weight[i] = centre - kStep;
      model.SetWeight(name, weight);
      const double below = model.Run(batch, options).objective();
      weight[i] = centre;
      worst = std::max(worst, std::abs((above - below) / (2 * kStep) - gradients[name][i]));
    }
    model.SetWeight(name, weight);
    if (IsIdleExpert(name, gradients)) {
      EXPECT_EQ(largest, 0) << name;
    } else {
      EXPECT_GT(largest, 0) << name;
    }
    EXPECT_LT(worst, 1e-6 * std::max(largest, 1e-3)) << name << ", largest " << largest;
  }
}

// Changing everything after a prefix leaves the prefix's logits: within 1e-12 in FP64, bit for bit
// in FP32 and BF16.
TEST_P(EveryModel, CausalRoutingNeverLooksAhead) {
  const ModelConfig& config = GetParam().config;
  constexpr int64_t kLength = 64;
  for (DType dtype : {DType::kFloat64, DType::kFloat32, DType::kBFloat16}) {
    TestModel model(config, dtype, kLength);
    const HostBatch batch = RandomBatch(1, kLength, config.vocabulary, 5);
    const TestModel::Options options{
        .routing = Routing::kCausal, .training = false, .logits = true};
    const TestModel::Result whole = model.Run(batch, options);
    for (int64_t prefix : {1, 3, 7, 15, 31, 32, 63}) {
      HostBatch changed = RandomBatch(1, kLength, config.vocabulary, 6);
      std::copy_n(batch.tokens.begin(), prefix, changed.tokens.begin());
      ASSERT_NE(changed.tokens, batch.tokens);
      const TestModel::Result other = model.Run(changed, options);
      double worst = 0;
      for (int64_t i = 0; i < prefix * config.vocabulary; ++i) {
        worst = std::max(worst, std::abs(other.logits[i] - whole.logits[i]));
      }
      EXPECT_LE(worst, dtype == DType::kFloat64 ? 1e-12 : 0.0)
          << Name(dtype) << ", prefix " << prefix;
      EXPECT_NE(other.logits, whole.logits);
    }
  }
}

// Top-k routing does look ahead: the test above would notice if causal routing did.
TEST(Stage, TopKRoutingLooksAhead) {
  const ModelConfig config =
      SmallConfig({DenseLayers(1), SparseLayers(3, 4), DenseLayers(1)}, Gate::kXMod);
  TestModel model(config, DType::kFloat64, 64);
  const HostBatch batch = RandomBatch(1, 64, config.vocabulary, 5);
  HostBatch changed = RandomBatch(1, 64, config.vocabulary, 6);
  std::copy_n(batch.tokens.begin(), 31, changed.tokens.begin());
  const TestModel::Options options{.training = false, .logits = true};
  const auto a = model.Run(batch, options).logits, b = model.Run(changed, options).logits;
  EXPECT_FALSE(std::equal(a.begin(), a.begin() + 31 * config.vocabulary, b.begin()));
}

TEST_P(EveryModel, TheSameSequenceGivesTheSameBitsInAnyBatch) {
  const ModelConfig& config = GetParam().config;
  const HostBatch pair = RandomBatch(2, 24, config.vocabulary, 9);
  HostBatch single = HostBatch::WholeSequences(1, 24);
  std::copy_n(pair.tokens.begin() + 24, 24, single.tokens.begin());
  std::copy_n(pair.labels.begin() + 24, 24, single.labels.begin());
  for (DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    TestModel model(config, dtype, 24);
    const auto together = model.Run(pair, {.training = false}).losses;
    const auto alone = model.Run(single, {.training = false}).losses;
    EXPECT_TRUE(std::equal(alone.begin(), alone.end(), together.begin() + 24)) << Name(dtype);
  }
}

TEST_P(EveryModel, EvaluationEqualsTrainingBitForBit) {
  const ModelConfig& config = GetParam().config;
  const HostBatch batch = RandomBatch(2, 24, config.vocabulary, 9);
  for (DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    TestModel model(config, dtype, 24);
    EXPECT_EQ(model.Run(batch, {.training = true}).losses,
              model.Run(batch, {.training = false}).losses)
        << Name(dtype);
  }
}

// A sparse layer over all tokens, without a gate and without auxiliary loss, is a dense layer.
TEST(Stage, SparsityOneWithoutGateEqualsDenseBitForBit) {
  for (DType dtype : {DType::kFloat32, DType::kFloat64}) {
    TestModel dense(SmallConfig({DenseLayers(4)}, Gate::kNone), dtype, 24);
    TestModel sparse(SmallConfig({DenseLayers(1), SparseLayers(2, 1), DenseLayers(1)}, Gate::kNone),
                     dtype, 24);
    const HostBatch batch = RandomBatch(2, 24, 23, 4);
    const TestModel::Result a = dense.Run(batch, {}), b = sparse.Run(batch, {});
    EXPECT_EQ(a.losses, b.losses);
    EXPECT_EQ(a.residual, b.residual);
    EXPECT_EQ(a.d_embedded, b.d_embedded);
    for (const Parameter& parameter : dense.table().all()) {
      EXPECT_EQ(dense.Gradient(parameter.spec.name), sparse.Gradient(parameter.spec.name))
          << parameter.spec.name;
    }
  }
}

// A sparse layer that is made to select tokens 1, 5 and 7 of 8 computes what a dense layer computes
// on those three alone, at their positions: outputs and gradients.
TEST(Stage, ForcedSelectionEqualsDenseLayerOnThoseTokens) {
  const std::vector<int32_t> chosen = {1, 5, 7};
  TestModel dense(SmallConfig({DenseLayers(1)}, Gate::kNone), DType::kFloat64, 8);
  TestModel sparse(SmallConfig({SparseLayers(1, 2)}, Gate::kNone), DType::kFloat64, 8);
  const int64_t d = sparse.stage().config().d;

  HostBatch large = RandomBatch(1, 8, 23, 2);
  HostBatch small = HostBatch::WholeSequences(1, 3);
  for (int32_t& label : large.labels) label = -1;
  for (size_t i = 0; i < chosen.size(); ++i) {
    large.labels[chosen[i]] = small.labels[i] = 3 * i;
    small.tokens[i] = large.tokens[chosen[i]];
    small.positions[i] = chosen[i];
  }
  const TestModel::Result a = dense.Run(small, {});
  const TestModel::Result b = sparse.Run(large, {.replay = {chosen}});
  EXPECT_NEAR(a.loss, b.loss, 1e-13);
  for (size_t i = 0; i < chosen.size(); ++i) {
    for (int64_t c = 0; c < d; ++c) {
      EXPECT_NEAR(a.residual[i * d + c], b.residual[chosen[i] * d + c], 1e-12);
      EXPECT_NEAR(a.d_embedded[i * d + c], b.d_embedded[chosen[i] * d + c], 1e-12);
    }
  }
  for (const Parameter& parameter : dense.table().all()) {
    const std::vector<double> x = dense.Gradient(parameter.spec.name);
    const std::vector<double> y = sparse.Gradient(parameter.spec.name);
    for (size_t i = 0; i < x.size(); ++i) ASSERT_NEAR(x[i], y[i], 1e-12) << parameter.spec.name;
  }
}

TEST(Stage, UnselectedTokensPassBitwise) {
  const ModelConfig config = SmallConfig({SparseLayers(3, 4)}, Gate::kXMod);
  TestModel model(config, DType::kFloat32, 32);
  const HostBatch batch = RandomBatch(2, 32, config.vocabulary, 8);
  const TestModel::Result result = model.Run(batch, {});
  std::vector<bool> touched(64);
  for (const auto& rows : result.selections) {
    EXPECT_EQ(rows.size(), 16);
    for (int32_t row : rows) touched[row] = true;
  }
  const std::vector<double> embedding = model.Weight("model.embed_tokens.weight");
  int passed = 0;
  for (int64_t row = 0; row < 64; ++row) {
    const bool equal = std::equal(result.residual.begin() + row * config.d,
                                  result.residual.begin() + (row + 1) * config.d,
                                  embedding.begin() + batch.tokens[row] * config.d);
    EXPECT_EQ(equal, !touched[row]) << row;
    passed += equal;
  }
  EXPECT_GT(passed, 0);
}

TEST(Stage, ZeroRouterSelectsTheLowestIndicesAndThenTheLeastUsed) {
  ModelConfig config =
      SmallConfig({DenseLayers(1), SparseLayers(3, 4), DenseLayers(1)}, Gate::kXMod);
  TestModel model(config, DType::kFloat32, 12);
  for (int layer : {1, 2, 3}) {
    model.SetWeight(absl::StrCat("model.layers.", layer, ".depth_router.weight"),
                    std::vector<double>(config.d, 0.0));
  }
  const TestModel::Result result = model.Run(RandomBatch(1, 12, config.vocabulary, 8), {});
  // Ties go to the lower index; the count of those that were chosen pushes them back.
  EXPECT_EQ(result.selections[0], (std::vector<int32_t>{0, 1, 2}));
  EXPECT_EQ(result.selections[1], (std::vector<int32_t>{3, 4, 5}));
  EXPECT_EQ(result.selections[2], (std::vector<int32_t>{6, 7, 8}));
}

TEST(Stage, CountsStartAgainAfterAFullLayerAndEveryResetEvery) {
  const auto first_of_each = [](const ModelConfig& config) {
    TestModel model(config, DType::kFloat32, 12);
    for (size_t layer = 0; layer < config.plan.layers.size(); ++layer) {
      const std::string name = absl::StrCat("model.layers.", layer, ".depth_router.weight");
      if (model.table().Find(name) != nullptr) {
        model.SetWeight(name, std::vector<double>(config.d, 0.0));
      }
    }
    std::vector<int32_t> first;
    for (const auto& rows : model.Run(RandomBatch(1, 12, config.vocabulary, 8), {}).selections) {
      first.push_back(rows[0]);
    }
    return first;
  };
  EXPECT_EQ(first_of_each(
                SmallConfig({SparseLayers(2, 4), DenseLayers(1), SparseLayers(2, 4)}, Gate::kXMod)),
            (std::vector<int32_t>{0, 3, 0, 3}));
  EXPECT_EQ(first_of_each(SmallConfig({SparseLayers(5, 4)}, Gate::kXMod, 2)),
            (std::vector<int32_t>{0, 3, 0, 3, 0}));
}

TEST(Stage, ZeroHeadLosesTheLogarithmOfTheVocabulary) {
  ModelConfig config = SmallConfig({DenseLayers(1)}, Gate::kXMod);
  config.vocabulary = 5;
  for (DType dtype : {DType::kFloat32, DType::kFloat64}) {
    TestModel model(config, dtype, 16);
    model.SetWeight("lm_head.weight", std::vector<double>(5 * config.d, 0.0));
    const TestModel::Result result = model.Run(RandomBatch(2, 16, 5, 1), {});
    EXPECT_NEAR(result.loss, 1.6094379124341003, dtype == DType::kFloat64 ? 1e-14 : 2e-7);
  }
}

TEST(Stage, UncountedLabelsCostNothing) {
  const ModelConfig config = SmallConfig({DenseLayers(2)}, Gate::kXMod);
  TestModel model(config, DType::kFloat64, 16);
  HostBatch batch = RandomBatch(1, 16, config.vocabulary, 1);
  const std::vector<double> all = model.Run(batch, {}).losses;
  for (int i = 0; i < 15; ++i) batch.labels[i] = -100;
  const TestModel::Result one = model.Run(batch, {});
  EXPECT_DOUBLE_EQ(one.loss, all[15]);
  batch.labels[15] = -100;
  const TestModel::Result none = model.Run(batch, {});
  EXPECT_EQ(none.loss, 0);
  for (const Parameter& parameter : model.table().all()) {
    for (double g : model.Gradient(parameter.spec.name)) ASSERT_EQ(g, 0) << parameter.spec.name;
  }
}

}  // namespace
}  // namespace fathom
