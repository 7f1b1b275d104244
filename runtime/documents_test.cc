// Documents that are packed into one sequence do not see each other.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/cpu_device.h"
#include "kernels/elementwise.h"
#include "runtime/language_model.h"

namespace fathom {
namespace {

constexpr int64_t kLength = 24;  // of a sequence, and of the two documents together
constexpr int64_t kFirst = 11;   // tokens of the first document

ModelConfig Config(bool sparse) {
  ModelConfig config;
  config.d = 32;
  config.heads = 4;
  config.kv_heads = 2;
  config.head_dim = 8;
  config.ffn = 48;
  config.vocabulary = 61;
  const LayerSpec dense = {LayerKind::kDense, 1}, four = {LayerKind::kSparse, 4};
  config.plan =
      MakeLayerPlan({{.repeat = 1, .layer = dense, .group = {}},
                     {.repeat = sparse ? 3 : 1, .layer = sparse ? four : dense, .group = {}},
                     {.repeat = 1, .layer = dense, .group = {}}},
                    config.reset_every);
  return config;
}

// Sequences of `tokens`, cut into documents at `segments`; the last label of each does not count.
HostBatch Batch(const std::vector<int32_t>& tokens, const std::vector<int32_t>& segments,
                int64_t sequences) {
  HostBatch batch = HostBatch::WholeSequences(sequences, tokens.size() / sequences);
  batch.tokens = tokens;
  batch.segments = segments;
  for (size_t s = 0; s + 1 < segments.size(); ++s) {
    for (int32_t i = segments[s]; i < segments[s + 1]; ++i) {
      batch.positions[i] = i - segments[s];
      batch.labels[i] = i + 1 < segments[s + 1] ? tokens[i + 1] : -100;
    }
  }
  return batch;
}

class DocumentsTest : public ::testing::Test {
 protected:
  // The loss of every label, in FP64.
  std::vector<double> Losses(LanguageModel& model, const HostBatch& host, Routing routing,
                             bool training) {
    Arena& arena = model.arena();
    ArenaScope scope(arena);
    const MicroBatch batch = Upload(host, model.stream(), arena);
    Pass pass = model.stage().NewPass(model.stream(), arena, batch);
    pass.routing = routing;
    pass.training = training;
    const Tensor losses = arena.New(StatisticsDType(model.dtype()), {batch.rows()});
    model.stage().Forward(pass, batch);
    model.stage().Loss(pass, batch, /*loss_weight=*/0, losses);
    EXPECT_TRUE(model.stream().Synchronize().ok());
    return std::vector<double>(losses.data<double>(), losses.data<double>() + losses.elements());
  }

  std::unique_ptr<LanguageModel> Model(bool sparse) {
    auto model = LanguageModel::Create(Config(sparse), DType::kFloat64, kLength, device_, true);
    FATHOM_CHECK(model.ok());
    FATHOM_CHECK(InitializeParameters((*model)->parameters(), 7, (*model)->stream()).ok());
    // Weights large enough for a wrong key to be seen.
    for (const Parameter& parameter : (*model)->parameters().all()) {
      const Tensor& weight = parameter.weight;
      for (int64_t i = 0; i < weight.elements(); ++i) weight.data<double>()[i] *= 5;
    }
    return *std::move(model);
  }

  void Check(bool sparse, Routing routing, bool training) {
    const auto model = Model(sparse);
    std::vector<int32_t> tokens(kLength);
    for (int32_t i = 0; i < kLength; ++i) tokens[i] = (i * i * 7 + 3) % 61;
    std::vector<int32_t> changed = tokens;
    for (int32_t i = 0; i < kFirst; ++i) changed[i] = (tokens[i] + 1 + i) % 61;
    const std::vector<int32_t> packed = {0, kFirst, kLength};
    const auto losses = Losses(*model, Batch(tokens, packed, 1), routing, training);
    const auto after = Losses(*model, Batch(changed, packed, 1), routing, training);
    const auto joined = Losses(*model, Batch(tokens, {0, kLength}, 1), routing, training);
    const auto first =
        Losses(*model, Batch({tokens.begin(), tokens.begin() + kFirst}, {0, kFirst}, 1), routing,
               training);
    const auto second =
        Losses(*model, Batch({tokens.begin() + kFirst, tokens.end()}, {0, kLength - kFirst}, 1),
               routing, training);
    EXPECT_EQ(losses[kFirst - 1], 0);
    EXPECT_EQ(losses[kLength - 1], 0);
    double with_context = 0, with_change = 0;
    for (int64_t i = 0; i < kLength; ++i) {
      const double alone = i < kFirst ? first[i] : second[i - kFirst];
      EXPECT_NEAR(losses[i], alone, 1e-9) << i;
      if (i < kFirst) {
        with_change = std::max(with_change, std::abs(losses[i] - after[i]));
      } else {
        EXPECT_NEAR(losses[i], after[i], 1e-12) << i;
        with_context = std::max(with_context, std::abs(losses[i] - joined[i]));
      }
    }
    // What must not matter would show.
    EXPECT_GT(with_change, 1e-3);
    EXPECT_GT(with_context, 1e-3);
  }

  CpuDevice device_{1};
};

TEST_F(DocumentsTest, DenseInTraining) { Check(false, Routing::kTopK, true); }
TEST_F(DocumentsTest, DenseInEvaluation) { Check(false, Routing::kTopK, false); }
TEST_F(DocumentsTest, SparseUnderCausalRouting) { Check(true, Routing::kCausal, false); }

// A micro-batch without a label that counts has the loss 0 and gradients of 0.
TEST_F(DocumentsTest, NoLabelNoLoss) {
  const auto model = Model(false);
  std::vector<int32_t> segments;
  for (int32_t i = 0; i <= kLength; ++i) segments.push_back(i);
  const HostBatch host = Batch(std::vector<int32_t>(kLength, 5), segments, 1);
  Stream& stream = model->stream();
  Arena& arena = model->arena();
  Launch(stream, Fill{.value = 0, .y = model->parameters().gradients()});
  const MicroBatch batch = Upload(host, stream, arena);
  Pass pass = model->stage().NewPass(stream, arena, batch);
  pass.training = true;
  const Tensor losses = arena.New(DType::kFloat64, {batch.rows()});
  model->stage().Forward(pass, batch);
  model->stage().Loss(pass, batch, /*loss_weight=*/1, losses);
  model->stage().Backward(pass, batch);
  ASSERT_TRUE(stream.Synchronize().ok());
  for (int64_t i = 0; i < kLength; ++i) EXPECT_EQ(losses.data<double>()[i], 0);
  const Tensor& gradients = model->parameters().gradients();
  for (int64_t i = 0; i < gradients.elements(); ++i) {
    ASSERT_EQ(gradients.data<double>()[i], 0) << i;
  }
}

}  // namespace
}  // namespace fathom
