#include "runtime/data/unicode_classes.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace fathom {
namespace {

TEST(UnicodeClassesTest, NumbersOfCodePointsAreThoseOfUnicode16) {
  int64_t count[4] = {};
  for (uint32_t c = 0; c < 0x110000; ++c) ++count[static_cast<int>(ClassOf(c))];
  // DerivedGeneralCategory.txt 16.0: L 141028; N is Nd 760, Nl 236, No 915; White_Space 25.
  EXPECT_EQ(count[static_cast<int>(CharClass::kLetter)], 141028);
  EXPECT_EQ(count[static_cast<int>(CharClass::kNumber)], 760 + 236 + 915);
  EXPECT_EQ(count[static_cast<int>(CharClass::kSpace)], 25);
}

TEST(UnicodeClassesTest, KnownCharacters) {
  EXPECT_EQ(ClassOf(0xdf), CharClass::kLetter);     // sharp s
  EXPECT_EQ(ClassOf(0x4e2d), CharClass::kLetter);   // a Han character
  EXPECT_EQ(ClassOf(0x1e900), CharClass::kLetter);  // Adlam
  EXPECT_EQ(ClassOf(0x301), CharClass::kOther);     // a combining accent
  EXPECT_EQ(ClassOf(0x663), CharClass::kNumber);    // an Arabic digit
  EXPECT_EQ(ClassOf(0xbd), CharClass::kNumber);     // one half
  EXPECT_EQ(ClassOf(0x2167), CharClass::kNumber);   // a Roman numeral
  EXPECT_EQ(ClassOf(0x3000), CharClass::kSpace);
  EXPECT_EQ(ClassOf(0x85), CharClass::kSpace);
  EXPECT_EQ(ClassOf(0x200b), CharClass::kOther);  // zero width, and no White_Space
  EXPECT_EQ(ClassOf(0x1f600), CharClass::kOther);
  EXPECT_EQ(ClassOf(0x1d7ff), CharClass::kNumber);
  EXPECT_EQ(ClassOf(0x10ffff), CharClass::kOther);
}

TEST(UnicodeClassesTest, AsciiAgreesWithTheTable) {
  for (int c = 0; c < 0x80; ++c) {
    const char text = static_cast<char>(c);
    EXPECT_EQ(CharAt(&text, &text + 1).char_class, ClassOf(c)) << c;
    EXPECT_EQ(CharAt(&text, &text + 1).size, 1);
  }
}

// Written by its definition, where CharAt has a table of bounds.
std::string EncodeUtf8(uint32_t c) {
  if (c < 0x80) return {static_cast<char>(c)};
  const auto tail = [c](int shift) { return static_cast<char>(0x80 | (c >> shift & 0x3f)); };
  if (c < 0x800) return {static_cast<char>(0xc0 | c >> 6), tail(0)};
  if (c < 0x10000) return {static_cast<char>(0xe0 | c >> 12), tail(6), tail(0)};
  return {static_cast<char>(0xf0 | c >> 18), tail(12), tail(6), tail(0)};
}

TEST(CharAtTest, EveryCodePoint) {
  for (uint32_t c = 0; c < 0x110000; ++c) {
    const std::string text = EncodeUtf8(c);
    const Char found = CharAt(text.data(), text.data() + text.size());
    if (c >= 0xd800 && c < 0xe000) {
      ASSERT_EQ(found.size, 1) << c;
      ASSERT_EQ(found.char_class, CharClass::kOther) << c;
    } else {
      ASSERT_EQ(found.size, text.size()) << c;
      ASSERT_EQ(found.char_class, ClassOf(c)) << c;
    }
    if (text.size() > 1) {  // cut short
      ASSERT_EQ(CharAt(text.data(), text.data() + text.size() - 1).size, 1) << c;
    }
  }
}

TEST(CharAtTest, BytesThatAreNoUtf8AreCharactersOfTheirOwn) {
  for (const std::string text :
       {"\x80", "\xbf", "\xc0\xaf", "\xc1\x81", "\xe0\x81\x81", "\xf0\x81\x81\x81",
        "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff", "\xc3(", "\xe4\xb8(", "\xf0\x9f\x98("}) {
    const Char found = CharAt(text.data(), text.data() + text.size());
    EXPECT_EQ(found.size, 1);
    EXPECT_EQ(found.char_class, CharClass::kOther);
  }
}

}  // namespace
}  // namespace fathom
