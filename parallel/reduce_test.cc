#include "parallel/reduce.h"

#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "gtest/gtest.h"

namespace fathom {
namespace {

uint16_t Bits(float value) { return std::bit_cast<uint32_t>(value) >> 16; }

uint16_t SumOfBFloat16(std::vector<uint16_t> terms) {
  std::vector<const void*> sources;
  for (const uint16_t& term : terms) sources.push_back(&term);
  uint16_t sum = 0;
  ReduceInOrder(DType::kBFloat16, ReduceOp::kSum, sources, 1, &sum);
  return sum;
}

TEST(ReduceTest, BFloat16RoundsOnceToNearestEven) {
  std::vector<uint16_t> terms(17, Bits(1));
  terms[0] = Bits(256);
  EXPECT_EQ(SumOfBFloat16(terms), Bits(272));
  EXPECT_EQ(SumOfBFloat16({Bits(256), Bits(1)}), Bits(256));             // tie, to even
  EXPECT_EQ(SumOfBFloat16({Bits(258), Bits(1)}), Bits(260));             // tie, to even
  EXPECT_EQ(SumOfBFloat16({Bits(256), Bits(1), Bits(0.5)}), Bits(258));  // above the tie
  const uint16_t infinity = Bits(std::numeric_limits<float>::infinity());
  EXPECT_EQ(SumOfBFloat16({infinity, Bits(1)}), infinity);
  EXPECT_EQ(SumOfBFloat16({0x7f7f, 0x7f7f}), infinity);  // the largest number, twice
  const uint16_t nan = SumOfBFloat16({infinity, Bits(-std::numeric_limits<float>::infinity())});
  EXPECT_EQ(nan & 0x7f80, 0x7f80);
  EXPECT_NE(nan & 0x7f, 0);
}

// In order: ((1e8 + 1) - 1e8) is 0 in float32, in any other order it is 1.
TEST(ReduceTest, AddsInTheOrderGiven) {
  const float big = 1e8f, one = 1, minus = -1e8f;
  float sum = 7;
  ReduceInOrder(DType::kFloat32, ReduceOp::kSum, {&big, &one, &minus}, 1, &sum);
  EXPECT_EQ(sum, 0);
  ReduceInOrder(DType::kFloat32, ReduceOp::kSum, {&big, &minus, &one}, 1, &sum);
  EXPECT_EQ(sum, 1);
}

TEST(ReduceTest, OutputMayBeASource) {
  std::mt19937 random(3);
  std::vector<double> a(1300), b(1300), expected(1300);
  for (size_t i = 0; i < a.size(); ++i) {
    a[i] = random() * 1e-9;
    b[i] = random() * 1e-9;
    expected[i] = a[i] + b[i];
  }
  ReduceInOrder(DType::kFloat64, ReduceOp::kSum, {a.data(), b.data()}, 1300, b.data());
  EXPECT_EQ(b, expected);
}

TEST(ReduceTest, IntegersWrapAndMaximumIsExact) {
  const int32_t most = std::numeric_limits<int32_t>::max(), one = 1;
  int32_t sum = 0;
  ReduceInOrder(DType::kInt32, ReduceOp::kSum, {&most, &one}, 1, &sum);
  EXPECT_EQ(sum, std::numeric_limits<int32_t>::min());
  const int64_t x = (int64_t{1} << 60) + 1, y = int64_t{1} << 60;
  int64_t maximum = 0;
  ReduceInOrder(DType::kInt64, ReduceOp::kMax, {&y, &x, &y}, 1, &maximum);
  EXPECT_EQ(maximum, x);
}

}  // namespace
}  // namespace fathom
