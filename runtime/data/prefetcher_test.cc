#include "runtime/data/prefetcher.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "parallel/mesh.h"

namespace fathom {
namespace {

// Token t of the source is t, so a sample's first input tells which one it is.
class CountingSource final : public TokenSource {
 public:
  // With documents of `document` tokens, the last one shorter; by default it is one.
  explicit CountingSource(int64_t tokens, int64_t document = 1 << 30)
      : tokens_(tokens), document_(document) {}
  const std::string& path() const override { return path_; }
  int64_t tokens() const override { return tokens_; }
  int64_t documents() const override { return (tokens_ + document_ - 1) / document_; }
  int64_t DocumentEnd(int64_t document) const override {
    return std::min(tokens_, (document + 1) * document_);
  }
  int64_t vocabulary() const override { return 0; }
  void Read(int64_t begin, int64_t count, int32_t* out) const override {
    std::iota(out, out + count, static_cast<int32_t>(begin));
  }

 private:
  std::string path_ = "counting.tokens";
  int64_t tokens_;
  int64_t document_;
};

constexpr int64_t kLength = 3;
constexpr int64_t kSamples = 44;  // in an epoch; two and a half of them are gone through
constexpr int64_t kGlobalBatch = 16;
constexpr int64_t kSteps = 7;

class PrefetcherTest : public ::testing::Test {
 protected:
  PrefetcherTest()
      : source_(kSamples * kLength + 1),
        sampler_(*Sampler::Create(source_, kLength, 1000, SampleOrder::kShuffled, 3)) {}

  // The samples that a rank trains on in each of the steps from `first_step` on, in order.
  std::vector<std::vector<int64_t>> SamplesOf(BatchShare share, int64_t first_step) {
    Prefetcher prefetcher(sampler_, share, kLength, first_step);
    std::vector<std::vector<int64_t>> steps;
    for (int64_t step = first_step; step <= kSteps; ++step) {
      const auto batches = prefetcher.Take();
      EXPECT_TRUE(batches.ok()) << batches.status();
      steps.emplace_back();
      EXPECT_EQ(static_cast<int64_t>((*batches)->micro_batches.size()), share.micro_batches());
      EXPECT_EQ((*batches)->counted_labels, kGlobalBatch * kLength);
      EXPECT_EQ((*batches)->pairs, kGlobalBatch * kLength * (kLength + 1) / 2);
      for (const HostBatch& batch : (*batches)->micro_batches) {
        for (int64_t b = 0; b < share.micro_batch; ++b) {
          const int32_t* tokens = &batch.tokens[b * kLength];
          const int32_t* labels = &batch.labels[b * kLength];
          for (int64_t t = 0; t < kLength; ++t) {
            EXPECT_EQ(tokens[t], tokens[0] + t);
            EXPECT_EQ(labels[t], tokens[t] + 1);
          }
          EXPECT_EQ(tokens[0] % kLength, 0);
          steps.back().push_back(tokens[0] / kLength);
        }
      }
    }
    return steps;
  }

  CountingSource source_;
  Sampler sampler_;
};

TEST_F(PrefetcherTest, RanksShareTheGlobalBatchWhateverTheLayoutAndTheRestart) {
  // What one rank alone goes through, each epoch a permutation.
  const auto alone = SamplesOf({.global_batch = kGlobalBatch}, 1);
  std::vector<int64_t> order;
  for (const auto& step : alone) order.insert(order.end(), step.begin(), step.end());
  for (int64_t epoch = 0; epoch < 2; ++epoch) {
    std::vector<int64_t> ids(order.begin() + epoch * kSamples,
                             order.begin() + (epoch + 1) * kSamples);
    std::sort(ids.begin(), ids.end());
    for (int64_t i = 0; i < kSamples; ++i) ASSERT_EQ(ids[i], i);
  }

  for (const int data : {1, 2, 4, 8}) {
    for (const int64_t micro_batch : {1, 2}) {
      const MeshSizes sizes = {.pipeline = 2, .data = data, .context = 1, .tensor = 2};
      const Mesh mesh = *Mesh::Create(4 * data, sizes);
      for (int64_t first_step = 1; first_step <= kSteps; ++first_step) {
        // By data coordinate: what its tensor and pipeline ranks all have.
        std::map<int, std::vector<std::vector<int64_t>>> of_group;
        for (int rank = 0; rank < mesh.world(); ++rank) {
          const int data_rank = mesh.CoordinatesOf(rank).data;
          const auto samples = SamplesOf({.global_batch = kGlobalBatch,
                                          .micro_batch = micro_batch,
                                          .data_size = data,
                                          .data_rank = data_rank},
                                         first_step);
          const auto [found, first] = of_group.emplace(data_rank, samples);
          ASSERT_EQ(found->second, samples);
        }
        ASSERT_EQ(static_cast<int>(of_group.size()), data);
        for (int64_t step = first_step; step <= kSteps; ++step) {
          // The stretches of the ranks, in order, are the global batch, so each of its sequences
          // is there once.
          std::vector<int64_t> together;
          for (const auto& [data_rank, steps] : of_group) {
            const auto& mine = steps[step - first_step];
            together.insert(together.end(), mine.begin(), mine.end());
          }
          ASSERT_EQ(together, alone[step - 1]) << "D " << data << ", step " << step;
        }
      }
    }
  }
}

// Every rank knows how many labels count in the batches of all, and how many pairs attention has.
TEST_F(PrefetcherTest, CountsTheDocumentsOfAllRanks) {
  constexpr int64_t kLong = 9;
  const CountingSource source(20 * kLong + 1, /*document=*/7);
  Sampler sampler = *Sampler::Create(source, kLong, 1000, SampleOrder::kShuffled, 3);
  ASSERT_TRUE(sampler.SeparateDocuments().ok());
  for (int64_t step = 1; step <= 5; ++step) {
    int64_t labels = 0, pairs = 0;  // added up over the ranks' batches
    std::vector<int64_t> said_labels;
    std::vector<double> said_pairs;
    for (const int rank : {0, 1}) {
      const BatchShare share = {
          .global_batch = 8, .micro_batch = 2, .data_size = 2, .data_rank = rank};
      Prefetcher prefetcher(sampler, share, kLong, step);
      const StepBatches* batches = *prefetcher.Take();
      said_labels.push_back(batches->counted_labels);
      said_pairs.push_back(batches->pairs);
      for (const HostBatch& batch : batches->micro_batches) {
        for (const int32_t label : batch.labels) labels += label >= 0;
        // A row sees as many rows as its position says, and itself.
        for (const int32_t position : batch.positions) pairs += position + 1;
      }
    }
    EXPECT_EQ(said_labels, std::vector<int64_t>(2, labels));
    EXPECT_EQ(said_pairs, std::vector<double>(2, static_cast<double>(pairs)));
    EXPECT_LT(pairs, 8 * kLong * (kLong + 1) / 2);
  }
}

TEST_F(PrefetcherTest, AnErrorComesWithTheStepThatNeedsTheData) {
  // In order, step 1 takes samples 0 and 1, step 2 samples 2 and 3: token 10 is in the latter.
  const Sampler sampler = *Sampler::Create(source_, kLength, 10, SampleOrder::kSequential, 0);
  Prefetcher prefetcher(sampler, {.global_batch = 2}, kLength, 1);
  EXPECT_TRUE(prefetcher.Take().ok());
  for (int i = 0; i < 2; ++i) {
    const absl::Status status = prefetcher.Take().status();
    EXPECT_TRUE(absl::IsOutOfRange(status)) << status;
    EXPECT_NE(status.ToString().find("token 10 at offset 10"), std::string::npos) << status;
  }
}

TEST_F(PrefetcherTest, WhatIsTakenStaysUntilTheNextIsTaken) {
  Prefetcher prefetcher(sampler_, {.global_batch = 4, .micro_batch = 2}, kLength, 1);
  for (int step = 1; step <= 50; ++step) {
    const std::vector<HostBatch>& batches = (*prefetcher.Take())->micro_batches;
    std::vector<int32_t> tokens(4 * kLength), labels(4 * kLength);
    ASSERT_TRUE(sampler_.Fill((step - 1) * 4, 4, tokens.data(), labels.data()).ok());
    for (int m = 0; m < 2; ++m) {
      const auto begin = tokens.begin() + m * 2 * kLength;
      ASSERT_EQ(batches[m].tokens, std::vector<int32_t>(begin, begin + 2 * kLength));
    }
  }
}

TEST_F(PrefetcherTest, IsDestroyedAtAnyTime) {
  for (int taken = 0; taken < 3; ++taken) {
    Prefetcher prefetcher(sampler_, {.global_batch = 4}, kLength, 1);
    for (int i = 0; i < taken; ++i) EXPECT_TRUE(prefetcher.Take().ok());
  }
}

}  // namespace
}  // namespace fathom
