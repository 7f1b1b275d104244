#include "runtime/data/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

namespace fathom {
namespace {

// Token t of the source is t.
class CountingSource final : public TokenSource {
 public:
  explicit CountingSource(int64_t tokens) : tokens_(tokens), ends_({tokens}) {}
  // With documents that end there.
  explicit CountingSource(std::vector<int64_t> ends) : tokens_(ends.back()), ends_(ends) {}
  const std::string& path() const override { return path_; }
  int64_t tokens() const override { return tokens_; }
  int64_t documents() const override { return ends_.size(); }
  int64_t DocumentEnd(int64_t document) const override { return ends_[document]; }
  bool knows_documents() const override { return ends_.size() > 1; }
  int64_t vocabulary() const override { return tokens_; }
  void Read(int64_t begin, int64_t count, int32_t* out) const override {
    for (int64_t i = 0; i < count; ++i) out[i] = begin + i;
  }

 private:
  std::string path_ = "counting.tokens";
  int64_t tokens_;
  std::vector<int64_t> ends_;
};

std::vector<int64_t> Order(uint64_t seed, uint64_t epoch, int64_t count) {
  std::vector<int64_t> order(count);
  for (int64_t i = 0; i < count; ++i) order[i] = SampleId(seed, epoch, i, count);
  return order;
}

TEST(SampleIdTest, IsAPermutation) {
  std::vector<int64_t> counts = {1000, 4095, 4096, 4097, 65537};
  for (int64_t count = 1; count <= 200; ++count) counts.push_back(count);
  for (const int64_t count : counts) {
    for (const uint64_t seed : {uint64_t{0}, uint64_t{1} << 40}) {
      std::vector<bool> seen(count);
      for (const int64_t id : Order(seed, 3, count)) {
        ASSERT_TRUE(id >= 0 && id < count) << count;
        ASSERT_FALSE(seen[id]) << count;
        seen[id] = true;
      }
    }
  }
}

TEST(SampleIdTest, DiffersByEpochAndSeed) {
  // Two random permutations agree at one place on average; 10 has a probability below 1e-6.
  const auto agreements = [](const std::vector<int64_t>& a, const std::vector<int64_t>& b) {
    int64_t count = 0;
    for (size_t i = 0; i < a.size(); ++i) count += a[i] == b[i];
    return count;
  };
  const std::vector<int64_t> order = Order(1, 0, 1000);
  EXPECT_EQ(order, Order(1, 0, 1000));
  EXPECT_LT(agreements(order, Order(1, 1, 1000)), 10);
  EXPECT_LT(agreements(order, Order(2, 0, 1000)), 10);
  EXPECT_LT(agreements(order, Order(1 + (uint64_t{1} << 32), 0, 1000)), 10);
  EXPECT_LT(agreements(order, Order(1, uint64_t{1} << 32, 1000)), 10);
}

TEST(SampleIdTest, EveryPositionGetsEverySampleEquallyOften) {
  // Over many epochs, position 0 of a count that is no power of two: chi-square with 36 degrees of
  // freedom has mean 36 and standard deviation 8.5.
  constexpr int64_t kCount = 37, kEpochs = 37 * 200;
  for (const int64_t position : {0, 1, 36}) {
    std::vector<double> hits(kCount);
    for (int64_t epoch = 0; epoch < kEpochs; ++epoch) ++hits[SampleId(7, epoch, position, kCount)];
    double chi_square = 0;
    for (const double h : hits) chi_square += (h - 200) * (h - 200) / 200;
    EXPECT_LT(chi_square, 36 + 5 * 8.5) << position;
    EXPECT_GT(chi_square, 36 - 4 * 8.5) << position;
  }
}

TEST(SampleIdTest, NeighboursAreUnrelated) {
  for (const int64_t count : {10007, 49152, 65537, 300000}) {
    const std::vector<int64_t> order = Order(1, 0, count);
    // Serial correlation of a random permutation is about N(0, 1/count).
    const double mean = static_cast<double>(count - 1) / 2;
    double covariance = 0, variance = 0;
    for (int64_t i = 0; i < count; ++i) {
      variance += (order[i] - mean) * (order[i] - mean);
      covariance += (order[i] - mean) * (order[(i + 1) % count] - mean);
    }
    EXPECT_LT(std::abs(covariance / variance), 5 / std::sqrt(count)) << count;
    // Cyclic differences of neighbours, and of what lies 2 and 64 apart, fill 64 buckets evenly:
    // chi-square, 63 degrees of freedom.
    for (const int64_t apart : {1, 2, 64}) {
      std::vector<double> hits(64);
      for (int64_t i = 0; i < count; ++i) {
        ++hits[(order[(i + apart) % count] - order[i] + count) % count * 64 / count];
      }
      const double expected = static_cast<double>(count) / 64;
      double chi_square = 0;
      for (const double h : hits) chi_square += (h - expected) * (h - expected) / expected;
      EXPECT_LT(chi_square, 63 + 5 * std::sqrt(2.0 * 63)) << count << " " << apart;
    }
  }
}

TEST(SamplerTest, CutsSamplesOfOneMoreThanTheSequence) {
  // 13 tokens and L = 4 give 3 samples: their last label is token 12. With 12 tokens there are 2.
  const CountingSource source(13), shorter(12);
  auto sampler = Sampler::Create(source, 4, 100, SampleOrder::kSequential, 0);
  ASSERT_TRUE(sampler.ok());
  EXPECT_EQ(sampler->count(), 3);
  EXPECT_EQ(Sampler::Create(shorter, 4, 100, SampleOrder::kSequential, 0)->count(), 2);
  std::vector<int32_t> inputs(12), labels(12);
  ASSERT_TRUE(sampler->Fill(1, 3, inputs.data(), labels.data()).ok());
  EXPECT_EQ(inputs, (std::vector<int32_t>{4, 5, 6, 7, 8, 9, 10, 11, 0, 1, 2, 3}));
  EXPECT_EQ(labels, (std::vector<int32_t>{5, 6, 7, 8, 9, 10, 11, 12, 1, 2, 3, 4}));
}

TEST(SamplerTest, BatchesDoNotChangeTheOrder) {
  const CountingSource source(5 * 11 + 1);
  auto sampler = Sampler::Create(source, 5, 100, SampleOrder::kShuffled, 3);
  ASSERT_TRUE(sampler.ok());
  constexpr int64_t kSequences = 24;  // across two borders of epochs
  std::vector<int32_t> inputs(kSequences * 5), labels(kSequences * 5);
  ASSERT_TRUE(sampler->Fill(0, kSequences, inputs.data(), labels.data()).ok());
  for (int64_t i = 0; i < kSequences; ++i) {
    std::vector<int32_t> one_inputs(5), one_labels(5);
    ASSERT_TRUE(sampler->Fill(i, 1, one_inputs.data(), one_labels.data()).ok());
    const int64_t id = SampleId(3, i / 11, i % 11, 11);
    for (int64_t t = 0; t < 5; ++t) {
      EXPECT_EQ(one_inputs[t], id * 5 + t);
      EXPECT_EQ(one_labels[t], id * 5 + t + 1);
      EXPECT_EQ(inputs[i * 5 + t], one_inputs[t]);
      EXPECT_EQ(labels[i * 5 + t], one_labels[t]);
    }
  }
}

TEST(SamplerTest, ABlendShufflesEachSourceByItself) {
  // Sources of 5 and 7 samples, taken 2 : 1, over several epochs of each.
  const CountingSource first(5 * 2 + 1), second(7 * 2 + 1);
  auto sampler = Sampler::CreateBlend({{&first, 2}, {&second, 1}}, 2, 100, 9);
  ASSERT_TRUE(sampler.ok()) << sampler.status();
  EXPECT_EQ(sampler->count(), 12);
  std::vector<std::vector<int64_t>> samples(2);
  for (int64_t n = 0; n < 63; ++n) {
    const Sampler::Place place = sampler->PlaceOf(n);
    samples[place.source].push_back(place.sample);
    EXPECT_LT(std::abs(static_cast<double>(samples[0].size()) - (n + 1) * 2 / 3.0), 1);
    std::vector<int32_t> inputs(2), labels(2);
    ASSERT_TRUE(sampler->Fill(n, 1, inputs.data(), labels.data()).ok());
    EXPECT_EQ(inputs[0], place.sample * 2);
  }
  ASSERT_EQ(samples[1].size(), 21u);
  for (const size_t source : {0u, 1u}) {
    const int64_t count = source == 0 ? 5 : 7;
    for (int64_t epoch = 0; epoch < 3; ++epoch) {
      std::vector<bool> seen(count);
      for (int64_t i = 0; i < count; ++i) seen[samples[source][epoch * count + i]] = true;
      EXPECT_EQ(seen, std::vector<bool>(count, true));
    }
  }
}

TEST(SamplerTest, EqualFilesOfABlendAreNotReadInStep) {
  const CountingSource source(1001);
  auto sampler = Sampler::CreateBlend({{&source, 1}, {&source, 1}}, 1, 2000, 9);
  auto single = Sampler::CreateBlend({{&source, 3}}, 1, 2000, 9);
  auto plain = Sampler::Create(source, 1, 2000, SampleOrder::kShuffled, 9);
  int64_t equal = 0;
  for (int64_t n = 0; n < 1000; ++n) {
    equal += sampler->PlaceOf(2 * n).sample == sampler->PlaceOf(2 * n + 1).sample;
    EXPECT_EQ(single->PlaceOf(n).sample, plain->PlaceOf(n).sample);
  }
  EXPECT_LT(equal, 10);
}

TEST(SamplerTest, SeparateDocuments) {
  // Sequences of 4 begin at tokens 0, 4, 8 and 12. Documents end behind a sequence's first token,
  // inside it, at its last input, at its last label, and one is empty.
  const CountingSource source(std::vector<int64_t>{1, 3, 8, 11, 11, 13, 17});
  Sampler sampler = *Sampler::Create(source, 4, 100, SampleOrder::kSequential, 0);
  HostBatch batch = HostBatch::WholeSequences(4, 4);
  ASSERT_TRUE(sampler.FillBatch(0, &batch).ok());
  EXPECT_EQ(batch.segments, HostBatch::WholeSequences(4, 4).segments);
  EXPECT_EQ(batch.positions, HostBatch::WholeSequences(4, 4).positions);
  EXPECT_EQ(sampler.CountLabels(0, 4), 16);
  EXPECT_EQ(sampler.CountPairs(0, 4), 4 * 10);

  ASSERT_TRUE(sampler.SeparateDocuments().ok());
  for (int again = 0; again < 2; ++again) {
    ASSERT_TRUE(sampler.FillBatch(0, &batch).ok());
    EXPECT_EQ(batch.tokens,
              (std::vector<int32_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}));
    EXPECT_EQ(batch.labels, (std::vector<int32_t>{-100, 2, -100, 4, 5, 6, 7, -100, 9, 10, -100, 12,
                                                  -100, 14, 15, 16}));
    EXPECT_EQ(batch.positions,
              (std::vector<int32_t>{0, 0, 1, 0, 0, 1, 2, 3, 0, 1, 2, 0, 0, 0, 1, 2}));
    EXPECT_EQ(batch.segments, (std::vector<int32_t>{0, 1, 3, 4, 8, 11, 12, 13, 16}));
  }
  EXPECT_EQ(sampler.CountLabels(0, 4), 11);
  EXPECT_EQ(sampler.CountLabels(1, 1), 3);
  EXPECT_EQ(sampler.CountLabels(3, 2), 3 + 2);
  // Segments of 1, 2, 1; of 4; of 3, 1; and of 1, 3.
  EXPECT_EQ(sampler.CountPairs(0, 4), 5 + 10 + 7 + 7);
  EXPECT_EQ(sampler.CountPairs(1, 1), 10);
  EXPECT_EQ(sampler.CountPairs(3, 2), 7 + 5);

  const CountingSource unknown(17);
  sampler = *Sampler::Create(unknown, 4, 100, SampleOrder::kSequential, 0);
  const absl::Status status = sampler.SeparateDocuments();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_NE(status.ToString().find("counting.tokens does not record"), std::string::npos);
}

TEST(SamplerTest, TooFewTokensAreNamed) {
  const CountingSource source(8);
  const absl::Status status = Sampler::Create(source, 8, 100, SampleOrder::kShuffled, 0).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_NE(status.ToString().find("counting.tokens has 8 tokens"), std::string::npos) << status;
  EXPECT_TRUE(Sampler::Create(source, 7, 100, SampleOrder::kShuffled, 0).ok());
}

TEST(SamplerTest, TokensOutsideTheVocabularyAreNamed) {
  const CountingSource source(9);
  auto sampler = Sampler::Create(source, 4, 7, SampleOrder::kSequential, 0);
  std::vector<int32_t> inputs(4), labels(4);
  EXPECT_TRUE(sampler->Fill(0, 1, inputs.data(), labels.data()).ok());
  const absl::Status status = sampler->Fill(1, 1, inputs.data(), labels.data());
  EXPECT_TRUE(absl::IsOutOfRange(status));
  EXPECT_NE(status.ToString().find("token 7 at offset 7"), std::string::npos) << status;
}

}  // namespace
}  // namespace fathom
