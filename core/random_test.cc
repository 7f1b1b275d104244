#include "core/random.h"

#include <gtest/gtest.h>

#include <cmath>

namespace fathom {
namespace {

// Known answers of the authors' own test vectors (Random123, kat_vectors).
TEST(Random, PhiloxKnownAnswers) {
  using Words = std::array<uint32_t, 4>;
  EXPECT_EQ(Philox4x32({0, 0, 0, 0}, {0, 0}),
            (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Random, HashKnownAnswers) {
  EXPECT_EQ(HashName(""), 0xcbf29ce484222325);
  EXPECT_EQ(HashName("a"), 0xaf63dc4c8601ec8c);
  EXPECT_EQ(HashName("foobar"), 0x85944171f73967e8);
}

TEST(Random, NormalNumbersHaveTheirMoments) {
  constexpr int kCount = 200000;
  double moments[5] = {};
  double lag = 0, previous = 0;
  for (int i = 0; i < kCount; ++i) {
    const double x = NormalAt(1, 2, i);
    for (int power = 1; power <= 4; ++power) moments[power] += std::pow(x, power) / kCount;
    lag += x * previous / kCount;
    previous = x;
  }
  // Four standard errors.
  EXPECT_NEAR(moments[1], 0, 4 / std::sqrt(kCount));
  EXPECT_NEAR(moments[2], 1, 4 * std::sqrt(2.0 / kCount));
  EXPECT_NEAR(moments[3], 0, 4 * std::sqrt(15.0 / kCount));
  EXPECT_NEAR(moments[4], 3, 4 * std::sqrt(96.0 / kCount));
  EXPECT_NEAR(lag, 0, 4 / std::sqrt(kCount));
}

TEST(Random, KeysGiveDifferentStreams) {
  EXPECT_NE(NormalAt(1, 2, 0), NormalAt(2, 2, 0));
  EXPECT_NE(NormalAt(1, 2, 0), NormalAt(1, 3, 0));
  EXPECT_NE(NormalAt(1, 2, 0), NormalAt(1, 2, 1));
  EXPECT_EQ(NormalAt(1, 2, 12345), NormalAt(1, 2, 12345));
}

}  // namespace
}  // namespace fathom
