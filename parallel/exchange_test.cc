#include "parallel/exchange.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>

#include "gtest/gtest.h"
#include "parallel/counts.h"

namespace fathom {
namespace {

constexpr int64_t kBillions = (int64_t{1} << 31) + 8;
// Addresses that nothing stands at: plans only compute with them.
char* const kInput = reinterpret_cast<char*>(int64_t{1} << 46);
char* const kOutput = reinterpret_cast<char*>(int64_t{1} << 47);

TEST(CountsTest, Even) {
  EXPECT_EQ(EvenCounts(10, 4), (std::vector<int64_t>{3, 3, 2, 2}));
  EXPECT_EQ(EvenCounts(2, 3), (std::vector<int64_t>{1, 1, 0}));
  EXPECT_EQ(EvenCounts(0, 2), (std::vector<int64_t>{0, 0}));
  EXPECT_EQ(EvenCounts(kBillions, 3), (std::vector<int64_t>{715827886, 715827885, 715827885}));
  EXPECT_EQ(Offsets({5, 0, kBillions, 1}),
            (std::vector<int64_t>{0, 5, 5, kBillions + 5, kBillions + 6}));
}

TEST(CountsTest, ChunksCoverEverythingOnce) {
  for (const int64_t elements :
       {int64_t{0}, int64_t{999}, int64_t{1000}, int64_t{1001}, int64_t{2500}, kBillions}) {
    const int64_t limit = elements == kBillions ? (int64_t{1} << 27) : 1000;
    int64_t next = 0;
    int chunks = 0;
    ForEachChunk(elements, limit, [&](int64_t begin, int64_t count) {
      EXPECT_EQ(begin, next);
      EXPECT_GE(count, 1);
      EXPECT_LE(count, limit);
      next = begin + count;
      ++chunks;
    });
    EXPECT_EQ(next, elements);
    EXPECT_EQ(chunks, (elements + limit - 1) / limit);
  }
}

// The messages between two ranks, in order, as (offset, bytes).
using Spans = std::vector<std::pair<int64_t, int64_t>>;

Spans SpansOf(const std::vector<Message>& messages, int peer, const char* base) {
  Spans spans;
  for (const Message& message : messages) {
    if (message.peer == peer) spans.emplace_back(message.data - base, message.bytes);
  }
  return spans;
}

int64_t TotalBytes(const std::vector<Message>& messages) {
  int64_t bytes = 0;
  for (const Message& message : messages) bytes += message.bytes;
  return bytes;
}

// Consecutive spans of at most 2^31 - 1 bytes that cover `bytes` from `offset` on.
void ExpectCover(const Spans& spans, int64_t offset, int64_t bytes) {
  int64_t next = offset;
  for (const auto& [begin, length] : spans) {
    EXPECT_EQ(begin, next);
    EXPECT_GT(length, 0);
    EXPECT_LE(length, std::numeric_limits<int32_t>::max());
    next = begin + length;
  }
  EXPECT_EQ(next, offset + bytes);
}

TEST(ExchangeTest, SendOfBillions) {
  const CollectiveRequest request{.collective = Collective::kSend,
                                  .input = Tensor(kInput, DType::kFloat32, {kBillions}),
                                  .peer = 1};
  ExchangeLimits limits;
  const auto rounds = PlanExchange(request, 0, 2, limits);
  ASSERT_EQ(rounds.size(), 1u);
  EXPECT_EQ(rounds[0].sends.size(), 17u);
  ExpectCover(SpansOf(rounds[0].sends, 1, kInput), 0, 4 * kBillions);
  // However large the limit is, a message's bytes fit into MPI's int.
  limits.chunk_elements = int64_t{1} << 40;
  const auto large = PlanExchange(request, 0, 2, limits);
  ExpectCover(SpansOf(large[0].sends, 1, kInput), 0, 4 * kBillions);
}

TEST(ExchangeTest, AllGatherOfBillions) {
  const std::vector<int64_t> counts = {kBillions, 5, kBillions};
  const CollectiveRequest request{.collective = Collective::kAllGather,
                                  .input = Tensor(kInput, DType::kFloat64, {5}),
                                  .output = Tensor(kOutput, DType::kFloat64, {2 * kBillions + 5}),
                                  .counts = counts};
  const auto rounds = PlanExchange(request, 1, 3, {});
  ASSERT_EQ(rounds.size(), 1u);
  ExpectCover(SpansOf(rounds[0].receives, 0, kOutput), 0, 8 * kBillions);
  ExpectCover(SpansOf(rounds[0].receives, 2, kOutput), 8 * (kBillions + 5), 8 * kBillions);
  ExpectCover(SpansOf(rounds[0].sends, 2, kInput), 0, 40);
}

TEST(ExchangeTest, AllToAllOfBillions) {
  const CollectiveRequest request{.collective = Collective::kAllToAll,
                                  .input = Tensor(kInput, DType::kBFloat16, {kBillions + 3}),
                                  .output = Tensor(kOutput, DType::kBFloat16, {kBillions + 7}),
                                  .counts = {kBillions, 0, 3},
                                  .receive_counts = {7, 0, kBillions}};
  const auto rounds = PlanExchange(request, 1, 3, {});
  ExpectCover(SpansOf(rounds[0].sends, 2, kInput), 2 * kBillions, 6);
  ExpectCover(SpansOf(rounds[0].receives, 2, kOutput), 14, 2 * kBillions);
}

// The slices of all ranks' messages together: each element of the operand goes to its owner once.
TEST(ExchangeTest, AllReduceOfBillions) {
  constexpr int kRanks = 4;
  for (int rank = 0; rank < kRanks; ++rank) {
    const Tensor x(kInput, DType::kFloat32, {kBillions});
    const CollectiveRequest request{.collective = Collective::kAllReduce, .input = x, .output = x};
    const auto rounds = PlanExchange(request, rank, kRanks, {});
    const std::vector<int64_t> counts = EvenCounts(kBillions, kRanks);
    const std::vector<int64_t> offsets = Offsets(counts);
    for (int peer = 0; peer < kRanks; ++peer) {
      if (peer == rank) continue;
      Spans sent;
      for (size_t i = 0; i + 1 < rounds.size(); ++i) {
        const Spans spans = SpansOf(rounds[i].sends, peer, kInput);
        sent.insert(sent.end(), spans.begin(), spans.end());
      }
      ExpectCover(sent, 4 * offsets[peer], 4 * counts[peer]);
      ExpectCover(SpansOf(rounds.back().sends, peer, kInput), 4 * offsets[rank], 4 * counts[rank]);
      ExpectCover(SpansOf(rounds.back().receives, peer, kInput), 4 * offsets[peer],
                  4 * counts[peer]);
    }
    int64_t bytes = 0;
    for (const ExchangeRound& round : rounds) bytes += TotalBytes(round.sends);
    EXPECT_EQ(bytes, 2 * (kRanks - 1) * kBillions);  // 2 (N - 1) / N of 4 bytes an element
  }
}

// Both sides of every pair see the same messages, round by round, in every operation.
TEST(ExchangeTest, BothSidesAgree) {
  constexpr int kRanks = 5;
  const std::vector<int64_t> uneven = {3, 0, 2500, 1001, 1};
  const int64_t sum = std::accumulate(uneven.begin(), uneven.end(), int64_t{0});
  ExchangeLimits limits{.chunk_elements = 1000, .scratch_bytes = 8000, .small_bytes = 100};
  for (const Collective collective :
       {Collective::kAllReduce, Collective::kReduceScatter, Collective::kAllGather,
        Collective::kBroadcast, Collective::kBarrier}) {
    std::vector<std::vector<ExchangeRound>> plans;
    for (int rank = 0; rank < kRanks; ++rank) {
      const Tensor whole(kInput, DType::kFloat32, {sum});
      const Tensor part(kOutput, DType::kFloat32, {uneven[rank]});
      CollectiveRequest request{.collective = collective, .input = whole, .output = whole};
      if (collective == Collective::kReduceScatter) request.output = part;
      if (collective == Collective::kAllGather) request.input = part;
      request.counts = uneven;
      request.peer = 2;
      plans.push_back(PlanExchange(request, rank, kRanks, limits));
    }
    for (int from = 0; from < kRanks; ++from) {
      ASSERT_EQ(plans[from].size(), plans[0].size()) << Name(collective);
      for (int to = 0; to < kRanks; ++to) {
        for (size_t round = 0; round < plans[0].size(); ++round) {
          std::vector<int64_t> sent, received;
          for (const Message& m : plans[from][round].sends) {
            if (m.peer == to) sent.push_back(m.bytes);
          }
          for (const Message& m : plans[to][round].receives) {
            if (m.peer == from) received.push_back(m.bytes);
          }
          EXPECT_EQ(sent, received) << Name(collective) << " from " << from << " to " << to;
          EXPECT_TRUE(sent.empty() || from != to);
        }
      }
    }
  }
}

// Carries out the plans of all ranks, round by round.
void Exchange(std::vector<std::vector<ExchangeRound>>& plans) {
  const int ranks = static_cast<int>(plans.size());
  for (size_t round = 0; round < plans[0].size(); ++round) {
    for (int from = 0; from < ranks; ++from) {
      for (int to = 0; to < ranks; ++to) {
        auto receive = plans[to][round].receives.begin();
        for (const Message& send : plans[from][round].sends) {
          if (send.peer != to) continue;
          while (receive->peer != from) ++receive;
          ASSERT_EQ(receive->bytes, send.bytes);
          std::memcpy((receive++)->data, send.data, send.bytes);
        }
      }
    }
    for (std::vector<ExchangeRound>& plan : plans) {
      if (plan[round].then) plan[round].then();
    }
  }
}

float ValueOf(int rank, int64_t i) {
  return 1.0f / static_cast<float>(1 + (i * 31 + rank * 17) % 101);
}

// In rank order, as the sums of floats must be taken to be the same to the bit.
std::vector<float> Sums(int ranks, int64_t elements) {
  std::vector<float> sums(elements);
  for (int64_t i = 0; i < elements; ++i) {
    sums[i] = ValueOf(0, i);
    for (int r = 1; r < ranks; ++r) sums[i] += ValueOf(r, i);
  }
  return sums;
}

std::vector<std::vector<float>> Inputs(int ranks, int64_t elements) {
  std::vector<std::vector<float>> inputs(ranks, std::vector<float>(elements));
  for (int r = 0; r < ranks; ++r) {
    for (int64_t i = 0; i < elements; ++i) inputs[r][i] = ValueOf(r, i);
  }
  return inputs;
}

Tensor View(std::vector<float>& x) {
  return Tensor(x.data(), DType::kFloat32, {static_cast<int64_t>(x.size())});
}

// One round or two, scratch for everything or for next to nothing: the same bits.
TEST(ExchangeTest, SumsDoNotDependOnTheLimits) {
  constexpr int kRanks = 5;
  const std::vector<ExchangeLimits> all_limits = {
      {},
      {.small_bytes = 0},
      {.chunk_elements = 1000, .scratch_bytes = 20000, .small_bytes = 0},
      {.chunk_elements = 7, .scratch_bytes = 1, .small_bytes = 0}};
  for (const ExchangeLimits& limits : all_limits) {
    for (const int64_t elements : {0, 1, 999, 1000, 1001, 2500}) {
      std::vector<std::vector<float>> x = Inputs(kRanks, elements);
      std::vector<std::vector<ExchangeRound>> plans;
      for (int r = 0; r < kRanks; ++r) {
        plans.push_back(PlanExchange({.collective = Collective::kAllReduce,
                                      .op = ReduceOp::kSum,
                                      .input = View(x[r]),
                                      .output = View(x[r])},
                                     r, kRanks, limits));
      }
      Exchange(plans);
      for (int r = 0; r < kRanks; ++r) EXPECT_EQ(x[r], Sums(kRanks, elements));
    }
  }
}

TEST(ExchangeTest, UnevenSlicesInSeveralRounds) {
  constexpr int kRanks = 4;
  const std::vector<int64_t> counts = {1001, 0, 2500, 1};
  const std::vector<int64_t> offsets = Offsets(counts);
  std::vector<std::vector<float>> x = Inputs(kRanks, offsets.back());
  std::vector<std::vector<ExchangeRound>> plans;
  for (int r = 0; r < kRanks; ++r) {
    plans.push_back(PlanExchange({.collective = Collective::kReduceScatter,
                                  .op = ReduceOp::kSum,
                                  .input = View(x[r]),
                                  .output = View(x[r]).Rows(offsets[r], offsets[r + 1]),
                                  .counts = counts},
                                 r, kRanks, {.scratch_bytes = 3000}));
    EXPECT_EQ(plans.back().size(), 14u);  // 2,500 elements, 3000 / (4 * 4 bytes) = 187 at a time
  }
  Exchange(plans);
  const std::vector<float> sums = Sums(kRanks, offsets.back());
  for (int r = 0; r < kRanks; ++r) {
    for (int64_t i = offsets[r]; i < offsets[r + 1]; ++i) ASSERT_EQ(x[r][i], sums[i]);
    for (int64_t i = 0; i < offsets[r]; ++i) ASSERT_EQ(x[r][i], ValueOf(r, i));
  }
}

}  // namespace
}  // namespace fathom
