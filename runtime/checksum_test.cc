#include "runtime/checksum.h"

#include <gtest/gtest.h>

namespace fathom {
namespace {

TEST(ChecksumTest, KnownAnswer) {
  // The published XXH3 value of the empty input with seed 0.
  EXPECT_EQ(Checksum(""), 0x2d06800538d394c2u);
  EXPECT_EQ(Hex(0x2d06800538d394c2u), "2d06800538d394c2");
  EXPECT_EQ(Hex(0xabc), "0000000000000abc");
}

TEST(ChecksumTest, PiecesGiveTheSame) {
  std::string text;
  for (int i = 0; i < 1000; ++i) text += std::to_string(i);
  ChecksumStream stream;
  for (size_t begin = 0; begin < text.size(); begin += 77) {
    stream.Add(std::string_view(text).substr(begin, 77));
  }
  EXPECT_EQ(stream.value(), Checksum(text));
  stream.Add("x");
  EXPECT_EQ(stream.value(), Checksum(text + "x"));
}

}  // namespace
}  // namespace fathom
