// Documents that are packed into one sequence do not see each other.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
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
  // What a forward pass gives, in FP64.
  struct Result {
    std::vector<double> losses;  // of every label
    std::vector<double> hidden;  // [n, d]: what the head makes the logits of, row by row
    std::vector<std::vector<int32_t>> selections;      // of the sparse layers, and the logits that
    std::vector<std::vector<double>> adjusted_logits;  // they were made by
  };
  template <class T>
  static std::vector<T> Values(const Tensor& tensor) {
    return std::vector<T>(tensor.data<T>(), tensor.data<T>() + tensor.elements());
  }
  Result Forward(LanguageModel& model, const HostBatch& host, Routing routing, bool training) {
    Arena& arena = model.arena();
    ArenaScope scope(arena);
    const MicroBatch batch = Upload(host, model.stream(), arena);
    Pass pass = model.stage().NewPass(model.stream(), arena, batch);
    pass.routing = routing;
    pass.training = training;
    const Tensor losses = arena.New(StatisticsDType(model.dtype()), {batch.rows()});
    model.stage().Forward(pass, batch);
    Result result{.hidden = Values<double>(pass.residual)};
    for (const LayerSelection& selection : pass.selections) {
      result.selections.push_back(Values<int32_t>(selection.index));
      result.adjusted_logits.push_back(Values<double>(selection.adjusted_logits));
    }
    model.stage().Loss(pass, batch, /*loss_weight=*/0, losses);
    EXPECT_TRUE(model.stream().Synchronize().ok());
    result.losses = Values<double>(losses);
    return result;
  }

  std::unique_ptr<LanguageModel> Model(bool sparse) {
    const LanguageModelOptions options{
        .dtype = DType::kFloat64, .length = kLength, .with_gradients = true};
    auto model = LanguageModel::Create(Config(sparse), options, *alone_, device_);
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
    const Result result = Forward(*model, Batch(tokens, packed, 1), routing, training);
    const Result after = Forward(*model, Batch(changed, packed, 1), routing, training);
    const Result joined = Forward(*model, Batch(tokens, {0, kLength}, 1), routing, training);
    const Result first =
        Forward(*model, Batch({tokens.begin(), tokens.begin() + kFirst}, {0, kFirst}, 1), routing,
                training);
    const Result second =
        Forward(*model, Batch({tokens.begin() + kFirst, tokens.end()}, {0, kLength - kFirst}, 1),
                routing, training);
    EXPECT_EQ(result.losses[kFirst - 1], 0);
    EXPECT_EQ(result.losses[kLength - 1], 0);
    const auto compare = [&](auto what, int64_t width) {
      // What must not matter would show: the change in doc1, and doc1 before doc2.
      double with_change = 0, with_context = 0;
      for (int64_t i = 0; i < kLength * width; ++i) {
        const int64_t border = kFirst * width;
        const double packed_value = (result.*what)[i];
        const double alone = i < border ? (first.*what)[i] : (second.*what)[i - border];
        EXPECT_NEAR(packed_value, alone, 1e-9) << i;
        if (i < border) {
          with_change = std::max(with_change, std::abs(packed_value - (after.*what)[i]));
        } else {
          EXPECT_NEAR(packed_value, (after.*what)[i], 1e-12) << i;
          with_context = std::max(with_context, std::abs(packed_value - (joined.*what)[i]));
        }
      }
      EXPECT_GT(with_change, 1e-3);
      EXPECT_GT(with_context, 1e-3);
    };
    compare(&Result::losses, 1);
    compare(&Result::hidden, model->config().d);
  }

  CpuDevice device_{1};
  std::unique_ptr<RankGroups> alone_ = RankGroups::Alone();
};

TEST_F(DocumentsTest, DenseInTraining) { Check(false, Routing::kTopK, true); }
TEST_F(DocumentsTest, DenseInEvaluation) { Check(false, Routing::kTopK, false); }
TEST_F(DocumentsTest, SparseUnderCausalRouting) { Check(true, Routing::kCausal, false); }

// In training the documents of a sequence compete for its k places: the selection is that of a sort
// over the whole sequence.
TEST_F(DocumentsTest, SparseInTrainingSelectsFromTheWholeSequence) {
  const auto model = Model(true);
  std::vector<int32_t> tokens(2 * kLength);
  for (int32_t i = 0; i < 2 * kLength; ++i) tokens[i] = (i * i * 7 + 3) % 61;
  const std::vector<int32_t> packed = {0, kFirst, kLength, kLength + 5, 2 * kLength};
  const Result result = Forward(*model, Batch(tokens, packed, 2), Routing::kTopK, true);
  ASSERT_EQ(result.selections.size(), 3);
  int64_t uneven = 0;
  for (size_t layer = 0; layer < result.selections.size(); ++layer) {
    const std::vector<double>& z = result.adjusted_logits[layer];
    std::vector<int32_t> expected;
    for (int32_t begin = 0; begin < 2 * kLength; begin += kLength) {
      std::vector<int32_t> rows(kLength);
      std::iota(rows.begin(), rows.end(), begin);
      std::stable_sort(rows.begin(), rows.end(),
                       [&z](int32_t a, int32_t b) { return z[a] > z[b]; });
      rows.resize(kLength / 4);
      std::sort(rows.begin(), rows.end());
      expected.insert(expected.end(), rows.begin(), rows.end());
    }
    EXPECT_EQ(result.selections[layer], expected) << layer;
    // A quarter of the first document would be 2.
    uneven +=
        std::count_if(expected.begin(), expected.end(), [](int32_t i) { return i < kFirst; }) != 2;
  }
  EXPECT_GT(uneven, 0);
}

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
