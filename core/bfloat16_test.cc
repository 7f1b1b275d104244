#include "core/bfloat16.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace fathom {
namespace {

uint16_t BitsOf(float x) { return BFloat16(x).bits; }

TEST(BFloat16Test, KnownBits) {
  EXPECT_EQ(BitsOf(0.0f), 0x0000);
  EXPECT_EQ(BitsOf(-0.0f), 0x8000);
  EXPECT_EQ(BitsOf(1.0f), 0x3f80);
  EXPECT_EQ(BitsOf(-2.5f), 0xc020);
  EXPECT_EQ(BitsOf(3.14159265f), 0x4049);
  EXPECT_EQ(BitsOf(1e-40f), 0x0001);  // 1.09 of the smallest numbers
  EXPECT_EQ(BFloat16(1).bits, 0x3f80);
  EXPECT_EQ(BFloat16(0.1).bits, 0x3dcd);
}

TEST(BFloat16Test, TiesGoToEven) {
  EXPECT_EQ(BitsOf(1.00390625f), 0x3f80);                         // 1 + 1/256, half a unit
  EXPECT_EQ(BitsOf(1.01171875f), 0x3f82);                         // 1 + 3/256
  EXPECT_EQ(BitsOf(std::nextafterf(1.00390625f, 2.0f)), 0x3f81);  // above the middle
  EXPECT_EQ(BitsOf(std::nextafterf(1.01171875f, 1.0f)), 0x3f81);  // below it
  EXPECT_EQ(BitsOf(-1.00390625f), 0xbf80);
}

TEST(BFloat16Test, TheEndsOfTheRange) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(BitsOf(kInfinity), 0x7f80);
  EXPECT_EQ(BitsOf(-kInfinity), 0xff80);
  EXPECT_EQ(BitsOf(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_EQ(BitsOf(3.38953139e38f), 0x7f7f);
}

TEST(BFloat16Test, NaNStaysNaN) {
  EXPECT_TRUE(std::isnan(static_cast<float>(BFloat16(std::nanf("")))));
  // A NaN whose upper half alone would be an infinity, and one that rounding would carry over.
  EXPECT_TRUE(std::isnan(static_cast<float>(BFloat16(std::bit_cast<float>(0x7f800001u)))));
  EXPECT_TRUE(std::isnan(static_cast<float>(BFloat16(std::bit_cast<float>(0xffffffffu)))));
}

TEST(BFloat16Test, EveryValueComesBack) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = static_cast<float>(BFloat16::FromBits(bits));
    if (std::isnan(value)) continue;
    EXPECT_EQ(BitsOf(value), bits);
    EXPECT_EQ(static_cast<double>(BFloat16::FromBits(bits)), static_cast<double>(value));
  }
}

}  // namespace
}  // namespace fathom
