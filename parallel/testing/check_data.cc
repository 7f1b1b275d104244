#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "gtest/gtest.h"
#include "parallel/testing/check_values.h"
#include "parallel/testing/communicator_checks.h"

namespace fathom {
namespace {

template <class T>
void AllReduceSums(Communicator& c) {
  Rank rank;
  for (const int64_t length : kLengths) {
    std::vector<T> x = ValuesOf<T>(c.rank(), 0, length);
    EXPECT_TRUE(c.AllReduce(View(x), ReduceOp::kSum, rank.stream()).Wait().ok());
    EXPECT_EQ(x, SumsOf<T>(c.size(), 0, length)) << length << " elements";
  }
}

template <class T>
void AllReduceMaximum(Communicator& c) {
  Rank rank;
  for (const int64_t length : kLengths) {
    std::vector<T> x = ValuesOf<T>(c.rank(), 0, length);
    EXPECT_TRUE(c.AllReduce(View(x), ReduceOp::kMax, rank.stream()).Wait().ok());
    std::vector<T> expected = ValuesOf<T>(0, 0, length);
    for (int r = 1; r < c.size(); ++r) {
      for (int64_t i = 0; i < length; ++i) {
        expected[i] = std::max(expected[i], ValueOf<T>(r, i));
      }
    }
    EXPECT_EQ(x, expected) << length << " elements";
  }
}

void MaximumKeepsNaN(Communicator& c) {
  Rank rank;
  for (int where = 0; where < c.size(); ++where) {
    std::vector<float> x = {c.rank() == where ? std::numeric_limits<float>::quiet_NaN() : 5.0f};
    EXPECT_TRUE(c.AllReduce(View(x), ReduceOp::kMax, rank.stream()).Wait().ok());
    EXPECT_TRUE(std::isnan(x[0])) << "NaN on rank " << where;
  }
}

uint16_t ToBFloat16(float value) {  // exact values only
  return static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);
}

Tensor BFloat16View(std::vector<uint16_t>& values) {
  return Tensor(values.data(), DType::kBFloat16, {static_cast<int64_t>(values.size())});
}

// 256 on rank 0 and 1 on the others: in bfloat16 256 + 1 is 256, so only a wider sum counts them.
void BFloat16SumsInFloat32(Communicator& c) {
  Rank rank;
  // Rounded once, to the nearest even of 8 significant bits.
  const float sum = 256.0f + static_cast<float>(c.size() - 1);
  const float unit = sum < 512 ? 2.0f : 4.0f;
  const float expected = std::nearbyint(sum / unit) * unit;
  for (const int64_t length : {int64_t{1}, int64_t{1001}, int64_t{40000}}) {
    std::vector<uint16_t> x(length, ToBFloat16(c.rank() == 0 ? 256.0f : 1.0f));
    EXPECT_TRUE(c.AllReduce(BFloat16View(x), ReduceOp::kSum, rank.stream()).Wait().ok());
    EXPECT_EQ(x, std::vector<uint16_t>(length, ToBFloat16(expected)));

    std::vector<uint16_t> input(length * c.size(), ToBFloat16(c.rank() == 0 ? 256.0f : 1.0f));
    std::vector<uint16_t> output(length);
    EXPECT_TRUE(
        c.ReduceScatter(BFloat16View(input), BFloat16View(output), ReduceOp::kSum, rank.stream())
            .Wait()
            .ok());
    EXPECT_EQ(output, std::vector<uint16_t>(length, ToBFloat16(expected)));
  }
}

// Sums that do round are those of a plain loop in rank order, to the bit, on every rank.
template <class T>
void SumsAreTakenInRankOrder(Communicator& c) {
  Rank rank;
  for (const int64_t length : {int64_t{3}, int64_t{1001}, int64_t{70001}}) {
    std::vector<std::vector<T>> all(c.size(), std::vector<T>(length));
    for (int r = 0; r < c.size(); ++r) {
      std::mt19937_64 random(1000 + r);
      std::normal_distribution<T> normal(0, 1);
      for (T& value : all[r]) value = normal(random);
    }
    std::vector<T> expected = all[0];
    for (int r = 1; r < c.size(); ++r) {
      for (int64_t i = 0; i < length; ++i) expected[i] += all[r][i];
    }
    std::vector<T> x = all[c.rank()];
    EXPECT_TRUE(c.AllReduce(View(x), ReduceOp::kSum, rank.stream()).Wait().ok());
    EXPECT_EQ(x, expected) << length << " elements";
  }
}

template <class T>
void ReduceScatterEven(Communicator& c) {
  Rank rank;
  for (const int64_t length : kLengths) {
    std::vector<T> input = ValuesOf<T>(c.rank(), 0, length * c.size());
    std::vector<T> output(length);
    EXPECT_TRUE(
        c.ReduceScatter(View(input), View(output), ReduceOp::kSum, rank.stream()).Wait().ok());
    EXPECT_EQ(output, SumsOf<T>(c.size(), length * c.rank(), length));
    EXPECT_EQ(input, ValuesOf<T>(c.rank(), 0, length * c.size())) << "the input has changed";
  }
}

void ReduceScatterUneven(Communicator& c) {
  Rank rank;
  for (const int64_t scale : kLengths) {
    const std::vector<int64_t> counts = UnevenCounts(c.size(), scale);
    const int64_t own = counts[c.rank()];
    const int64_t offset = Offsets(counts)[c.rank()];
    std::vector<double> input = ValuesOf<double>(c.rank(), 0, Sum(counts));
    std::vector<double> output(own);
    EXPECT_TRUE(c.ReduceScatter(View(input), View(output), ReduceOp::kSum, rank.stream(), counts)
                    .Wait()
                    .ok());
    EXPECT_EQ(output, SumsOf<double>(c.size(), offset, own));

    // Onto its own slice of the input.
    const Tensor slice = View(input).Rows(offset, offset + own);
    EXPECT_TRUE(
        c.ReduceScatter(View(input), slice, ReduceOp::kSum, rank.stream(), counts).Wait().ok());
    std::vector<double> expected = ValuesOf<double>(c.rank(), 0, Sum(counts));
    const std::vector<double> sums = SumsOf<double>(c.size(), offset, own);
    std::copy(sums.begin(), sums.end(), expected.begin() + offset);
    EXPECT_EQ(input, expected);
  }
}

void ReduceToEachRank(Communicator& c) {
  Rank rank;
  for (int root = 0; root < c.size(); ++root) {
    std::vector<int64_t> counts(c.size(), 0);
    counts[root] = 2500;
    std::vector<float> input = ValuesOf<float>(c.rank(), 0, 2500);
    std::vector<float> output(counts[c.rank()]);
    EXPECT_TRUE(c.ReduceScatter(View(input), View(output), ReduceOp::kSum, rank.stream(), counts)
                    .Wait()
                    .ok());
    if (c.rank() == root) {
      EXPECT_EQ(output, SumsOf<float>(c.size(), 0, 2500));
    }
  }
}

template <class T>
void AllGatherEven(Communicator& c) {
  Rank rank;
  for (const int64_t length : kLengths) {
    std::vector<T> input = ValuesOf<T>(c.rank(), 0, length);
    std::vector<T> output(length * c.size());
    EXPECT_TRUE(c.AllGather(View(input), View(output), rank.stream()).Wait().ok());
    std::vector<T> expected;
    for (int r = 0; r < c.size(); ++r) {
      const std::vector<T> part = ValuesOf<T>(r, 0, length);
      expected.insert(expected.end(), part.begin(), part.end());
    }
    EXPECT_EQ(output, expected);
  }
}

void AllGatherUneven(Communicator& c) {
  Rank rank;
  for (const int64_t scale : kLengths) {
    const std::vector<int64_t> counts = UnevenCounts(c.size(), scale);
    const int64_t offset = Offsets(counts)[c.rank()];
    std::vector<int32_t> expected;
    for (int r = 0; r < c.size(); ++r) {
      const std::vector<int32_t> part = ValuesOf<int32_t>(r, 0, counts[r]);
      expected.insert(expected.end(), part.begin(), part.end());
    }
    std::vector<int32_t> input = ValuesOf<int32_t>(c.rank(), 0, counts[c.rank()]);
    std::vector<int32_t> output(Sum(counts), 99);
    EXPECT_TRUE(c.AllGather(View(input), View(output), rank.stream(), counts).Wait().ok());
    EXPECT_EQ(output, expected);

    // From its own slice of the output.
    std::vector<int32_t> in_place(Sum(counts), 99);
    std::copy(input.begin(), input.end(), in_place.begin() + offset);
    const Tensor slice = View(in_place).Rows(offset, offset + counts[c.rank()]);
    EXPECT_TRUE(c.AllGather(slice, View(in_place), rank.stream(), counts).Wait().ok());
    EXPECT_EQ(in_place, expected);
  }
}

void AllToAllUneven(Communicator& c) {
  Rank rank;
  const auto count = [](int from, int to, int64_t scale) {
    return (from + 2 * to) % 4 == 1 ? 0 : scale + from * 5 + to;
  };
  for (const int64_t scale : kLengths) {
    std::vector<int64_t> send_counts, receive_counts;
    std::vector<float> input, expected;
    for (int peer = 0; peer < c.size(); ++peer) {
      send_counts.push_back(count(c.rank(), peer, scale));
      receive_counts.push_back(count(peer, c.rank(), scale));
      const std::vector<float> sent =
          ValuesOf<float>(c.rank() * c.size() + peer, 0, send_counts.back());
      input.insert(input.end(), sent.begin(), sent.end());
      const std::vector<float> received =
          ValuesOf<float>(peer * c.size() + c.rank(), 0, receive_counts.back());
      expected.insert(expected.end(), received.begin(), received.end());
    }
    std::vector<float> output(expected.size(), 99);
    EXPECT_TRUE(c.AllToAll(View(input), send_counts, View(output), receive_counts, rank.stream())
                    .Wait()
                    .ok());
    EXPECT_EQ(output, expected);
  }
}

void BroadcastFromEachRank(Communicator& c) {
  Rank rank;
  for (int root = 0; root < c.size(); ++root) {
    for (const int64_t length : {int64_t{0}, int64_t{1}, int64_t{2500}, int64_t{40003}}) {
      std::vector<int64_t> x = ValuesOf<int64_t>(c.rank(), 0, length);
      EXPECT_TRUE(c.Broadcast(View(x), root, rank.stream()).Wait().ok());
      EXPECT_EQ(x, ValuesOf<int64_t>(root, 0, length));
    }
  }
}

}  // namespace

std::vector<CommunicatorCheck> DataChecks() {
  return {
      {"AllReduceSumsFloat32", AllReduceSums<float>},
      {"AllReduceSumsFloat64", AllReduceSums<double>},
      {"AllReduceSumsInt32", AllReduceSums<int32_t>},
      {"AllReduceSumsInt64", AllReduceSums<int64_t>},
      {"AllReduceMaximumFloat32", AllReduceMaximum<float>},
      {"AllReduceMaximumInt64", AllReduceMaximum<int64_t>},
      {"MaximumKeepsNaN", MaximumKeepsNaN},
      {"BFloat16SumsInFloat32", BFloat16SumsInFloat32},
      {"SumsAreTakenInRankOrderFloat32", SumsAreTakenInRankOrder<float>},
      {"SumsAreTakenInRankOrderFloat64", SumsAreTakenInRankOrder<double>},
      {"ReduceScatterEvenFloat32", ReduceScatterEven<float>},
      {"ReduceScatterEvenInt64", ReduceScatterEven<int64_t>},
      {"ReduceScatterUneven", ReduceScatterUneven},
      {"ReduceToEachRank", ReduceToEachRank},
      {"AllGatherEvenFloat32", AllGatherEven<float>},
      {"AllGatherEvenFloat64", AllGatherEven<double>},
      {"AllGatherUneven", AllGatherUneven},
      {"AllToAllUneven", AllToAllUneven},
      {"BroadcastFromEachRank", BroadcastFromEachRank},
  };
}

}  // namespace fathom
