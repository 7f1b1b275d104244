#include "runtime/data/pretokenizer.h"

#include <gtest/gtest.h>

#include <random>
#include <regex>
#include <string>
#include <vector>

namespace fathom {
namespace {

using Pieces = std::vector<std::string>;

Pieces Split(SplitPattern pattern, const std::string& text) {
  Pieces pieces;
  const char* const end = text.data() + text.size();
  for (const char* at = text.data(); at < end;) {
    const char* const next = EndOfPiece(pattern, at, end);
    EXPECT_GT(next, at);
    pieces.emplace_back(at, next);
    at = next;
  }
  return pieces;
}

Pieces SplitByRegex(const std::regex& regex, const std::string& text) {
  return Pieces(std::sregex_token_iterator(text.begin(), text.end(), regex), {});
}

// The patterns for ASCII, where the standard library's expressions can say them.
constexpr char kWordsAndNumbers[] =
    "'(?:[sdmtSDMT]|[lL][lL]|[vV][eE]|[rR][eE])|[^\\r\\nA-Za-z0-9]?[A-Za-z]+|";
constexpr char kMarks[] = " ?[^\\sA-Za-z0-9]+[\\r\\n]*|";
constexpr char kSpaces[] = "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

void CompareOnRandomText(SplitPattern pattern, const std::string& regex) {
  const std::regex compiled(regex);
  std::mt19937 random(17);
  const std::string alphabet = "  \t\n\r'''sdmtlveraSLVRE019.,-#x";
  for (int i = 0; i < 3000; ++i) {
    std::string text(random() % 24, ' ');
    for (char& c : text) c = alphabet[random() % alphabet.size()];
    ASSERT_EQ(Split(pattern, text), SplitByRegex(compiled, text)) << "'" << text << "'";
  }
}

TEST(EndOfPieceTest, Gpt2IsTheRegexOnAscii) {
  CompareOnRandomText(SplitPattern::kGpt2,
                      "'(?:[sdmt]|ll|ve|re)| ?[A-Za-z]+| ?[0-9]+| ?[^\\sA-Za-z0-9]+|"
                      "\\s+(?!\\S)|\\s+");
}

TEST(EndOfPieceTest, Llama3IsTheRegexOnAscii) {
  CompareOnRandomText(SplitPattern::kLlama3,
                      std::string(kWordsAndNumbers) + "[0-9]{1,3}|" + kMarks + kSpaces);
}

TEST(EndOfPieceTest, Cl100kIsTheRegexOnAscii) {
  CompareOnRandomText(SplitPattern::kCl100k, std::string(kWordsAndNumbers) + "[0-9]{1,3}|" +
                                                 kMarks + "\\s+(?![^])|" + kSpaces);
}

TEST(EndOfPieceTest, Qwen2IsTheRegexOnAscii) {
  CompareOnRandomText(SplitPattern::kQwen2,
                      std::string(kWordsAndNumbers) + "[0-9]|" + kMarks + kSpaces);
}

TEST(EndOfPieceTest, OtherScripts) {
  EXPECT_EQ(Split(SplitPattern::kGpt2, "caf\u00e9 \u4e2d\u6587\u3002 \u0661\u0662x"),
            (Pieces{"caf\u00e9", " \u4e2d\u6587", "\u3002", " \u0661\u0662", "x"}));
  // A wide space is a space, but not the one that goes in front of a word.
  EXPECT_EQ(Split(SplitPattern::kGpt2, "a\u3000\u3000b"), (Pieces{"a", "\u3000", "\u3000", "b"}));
  EXPECT_EQ(Split(SplitPattern::kGpt2, "a\u0301b"), (Pieces{"a", "\u0301", "b"}));
  EXPECT_EQ(Split(SplitPattern::kLlama3, "'\u017fa\u00a0b"), (Pieces{"'\u017f", "a", "\u00a0b"}));
}

TEST(EndOfPieceTest, InvalidBytesAreNeitherLettersNorDigitsNorSpaces) {
  EXPECT_EQ(Split(SplitPattern::kGpt2, "a\xff\xc3 \xe4\xb8 1\x80!b"),
            (Pieces{"a", "\xff\xc3", " \xe4\xb8", " 1", "\x80!", "b"}));
}

TEST(LastSafeCutTest, CutsNowhereThatPiecesCross) {
  std::mt19937 random(23);
  const std::vector<std::string> alphabet = {
      " ",  "  ", "\n", "\r",   "\t",       "'",      "s",      "ll",     "a",      "B",     "1",
      "23", ".",  "-",  "\xff", "\xe4\xb8", "\u4e2d", "\u3002", "\u3000", "\u00a0", "\u017f"};
  const auto text = [&](int size) {
    std::string result;
    for (int i = 0; i < size; ++i) result += alphabet[random() % alphabet.size()];
    return result;
  };
  int64_t cuts = 0;
  for (int i = 0; i < 20000; ++i) {
    const auto pattern = static_cast<SplitPattern>(i % 4);
    const std::string known = text(random() % 12), rest = text(random() % 6);
    const bool at_spaces = random() % 2 == 0;
    const int64_t cut = LastSafeCut(pattern, known, at_spaces);
    if (cut == 0) continue;
    ++cuts;
    ASSERT_LT(cut, static_cast<int64_t>(known.size()));
    if (at_spaces) {
      ASSERT_EQ(known[cut], ' ');
    }
    Pieces parts = Split(pattern, known.substr(0, cut));
    for (const std::string& piece : Split(pattern, known.substr(cut) + rest)) {
      parts.push_back(piece);
    }
    ASSERT_EQ(parts, Split(pattern, known + rest)) << known << "|" << rest;
  }
  EXPECT_GT(cuts, 5000);
}

TEST(LastSafeCutTest, FindsTheLastOne) {
  for (const SplitPattern pattern : {SplitPattern::kGpt2, SplitPattern::kLlama3}) {
    EXPECT_EQ(LastSafeCut(pattern, "one two  three", false), 7);
    EXPECT_EQ(LastSafeCut(pattern, "one\ntwo", false), 3);
    EXPECT_EQ(LastSafeCut(pattern, "one\ntwo", true), 0);
    EXPECT_EQ(LastSafeCut(pattern, "\u4e2d\u6587 x", false), 6);
    EXPECT_EQ(LastSafeCut(pattern, " one", false), 0);
    EXPECT_EQ(LastSafeCut(pattern, "", false), 0);
  }
  EXPECT_EQ(LastSafeCut(SplitPattern::kGpt2, "one.\ntwo", false), 4);
  EXPECT_EQ(LastSafeCut(SplitPattern::kLlama3, "one.\ntwo", false), 0);
}

TEST(SplitPatternOfRegexTest, KnowsTheUsualOnes) {
  EXPECT_EQ(SplitPatternOfRegex("'(?:[sdmt]|ll|ve|re)| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|"
                                "\\s+(?!\\S)|\\s+"),
            SplitPattern::kGpt2);
  const std::string start = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}";
  const std::string end = "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
  EXPECT_EQ(SplitPatternOfRegex(start + "{1,3}" + end), SplitPattern::kLlama3);
  EXPECT_EQ(SplitPatternOfRegex(start + end), SplitPattern::kQwen2);
  EXPECT_EQ(SplitPatternOfRegex(start + "{1,2}" + end), std::nullopt);
  EXPECT_EQ(SplitPatternOfRegex(""), std::nullopt);
}

}  // namespace
}  // namespace fathom
