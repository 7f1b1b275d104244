#include "runtime/data/pretokenizer.h"

#include "core/check.h"
#include "runtime/data/unicode_classes.h"

namespace fathom {
namespace {

bool IsLineEnd(char c) { return c == '\r' || c == '\n'; }

// Past the characters of one class.
const char* Skip(CharClass char_class, const char* at, const char* end) {
  while (at < end) {
    const Char c = CharAt(at, end);
    if (c.char_class != char_class) break;
    at += c.size;
  }
  return at;
}

// \s+(?!\S)|\s+ at a space: the run of spaces, without its last one when text follows and the run
// has others.
const char* EndOfSpaces(const char* begin, const char* end) {
  const char* last = begin;
  const char* at = begin;
  while (at < end) {
    const Char c = CharAt(at, end);
    if (c.char_class != CharClass::kSpace) break;
    last = at;
    at += c.size;
  }
  return at == end || last == begin ? at : last;
}

// '(?:[sdmt]|ll|ve|re) at an apostrophe; `begin` when it does not match.
const char* EndOfContraction(const char* begin, const char* end) {
  if (end - begin < 2) return begin;
  const char first = begin[1];
  if (first == 's' || first == 'd' || first == 'm' || first == 't') return begin + 2;
  if (end - begin < 3) return begin;
  const char second = begin[2];
  const bool two =
      (first == 'l' && second == 'l') || ((first == 'v' || first == 'r') && second == 'e');
  return two ? begin + 3 : begin;
}

// The same in any case. U+017F, the long s, is a case of s.
const char* EndOfAnyCaseContraction(const char* begin, const char* end) {
  if (end - begin >= 3 && begin[1] == '\xc5' && begin[2] == '\xbf') return begin + 3;
  char lower[3];
  const int size = end - begin < 3 ? end - begin : 3;
  for (int i = 0; i < size; ++i) {
    lower[i] = begin[i] >= 'A' && begin[i] <= 'Z' ? begin[i] + ('a' - 'A') : begin[i];
  }
  return begin + (EndOfContraction(lower, lower + size) - lower);
}

const char* EndOfGpt2Piece(const char* begin, const char* end) {
  if (*begin == '\'') {
    const char* contraction = EndOfContraction(begin, end);
    if (contraction != begin) return contraction;
  }
  const char* at = begin;
  if (*begin == ' ' && end - begin > 1) ++at;
  const Char c = CharAt(at, end);
  if (c.char_class == CharClass::kSpace) return EndOfSpaces(begin, end);
  return Skip(c.char_class, at + c.size, end);
}

// \s*[\r\n]+|\s+(?!\S)|\s+ at a space: up to the last line end of the run, if it has one. With
// `whole_tail` a run that ends the text is taken whole.
const char* EndOfLines(const char* begin, const char* end, bool whole_tail) {
  const char* line_end = begin;
  const char* at = begin;
  while (at < end) {
    const Char c = CharAt(at, end);
    if (c.char_class != CharClass::kSpace) break;
    if (IsLineEnd(*at)) line_end = at + 1;
    at += c.size;
  }
  if (whole_tail && at == end) return end;
  return line_end != begin ? line_end : EndOfSpaces(begin, end);
}

const char* EndOfDigits(const char* begin, const char* end, int at_most) {
  const char* at = begin;
  for (int i = 0; i < at_most && at < end; ++i) {
    const Char c = CharAt(at, end);
    if (c.char_class != CharClass::kNumber) break;
    at += c.size;
  }
  return at;
}

const char* EndOfLlama3Piece(const char* begin, const char* end, int digits, bool whole_tail) {
  if (*begin == '\'') {
    const char* contraction = EndOfAnyCaseContraction(begin, end);
    if (contraction != begin) return contraction;
  }
  const Char c = CharAt(begin, end);
  const char* second = begin + c.size;
  if (c.char_class == CharClass::kLetter) return Skip(CharClass::kLetter, second, end);
  if (c.char_class == CharClass::kNumber) return EndOfDigits(begin, end, digits);
  const Char next = second < end ? CharAt(second, end) : Char{CharClass::kSpace, 0};
  if (next.char_class == CharClass::kLetter && !IsLineEnd(*begin)) {
    return Skip(CharClass::kLetter, second + next.size, end);
  }
  // ` ?[^\s\p{L}\p{N}]+[\r\n]*`
  if (c.char_class == CharClass::kOther ||
      (*begin == ' ' && next.char_class == CharClass::kOther)) {
    const char* at = Skip(CharClass::kOther, second, end);
    while (at < end && IsLineEnd(*at)) ++at;
    return at;
  }
  return EndOfLines(begin, end, whole_tail);
}

// The class of the character that ends at `end`, which must lie behind `begin`.
CharClass ClassBefore(const char* begin, const char* end) {
  for (int size = 4; size > 1; --size) {
    if (size <= end - begin && CharAt(end - size, end).size == size) {
      return CharAt(end - size, end).char_class;
    }
  }
  return CharAt(end - 1, end).char_class;
}

// Whether a piece always ends before the white space of ASCII at `at`. In every pattern a space
// comes first in its piece or follows another one, and what ends before it looks no further. The
// exception are line ends, which the newer patterns take in after punctuation.
bool IsSafeCut(SplitPattern pattern, const char* begin, const char* at) {
  const CharClass before = ClassBefore(begin, at);
  if (before == CharClass::kSpace) return false;
  return before != CharClass::kOther || *at == ' ' || pattern == SplitPattern::kGpt2;
}

}  // namespace

int64_t LastSafeCut(SplitPattern pattern, std::string_view text, bool at_spaces) {
  const char* const begin = text.data();
  for (int64_t at = static_cast<int64_t>(text.size()) - 1; at > 0; --at) {
    const char c = text[at];
    if (c != ' ' && (at_spaces || c < '\t' || c > '\r')) continue;
    if (IsSafeCut(pattern, begin, begin + at)) return at;
  }
  return 0;
}

const char* EndOfPiece(SplitPattern pattern, const char* begin, const char* end) {
  switch (pattern) {
    case SplitPattern::kGpt2:
      return EndOfGpt2Piece(begin, end);
    case SplitPattern::kLlama3:
      return EndOfLlama3Piece(begin, end, 3, false);
    case SplitPattern::kCl100k:
      return EndOfLlama3Piece(begin, end, 3, true);
    case SplitPattern::kQwen2:
      return EndOfLlama3Piece(begin, end, 1, false);
  }
  FATHOM_CHECK(false) << "no such pattern";
  return end;
}

std::optional<SplitPattern> SplitPatternOfRegex(std::string_view regex) {
  struct Known {
    std::string_view regex;
    SplitPattern pattern;
  };
  static constexpr Known kKnown[] = {
      {R"('(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
       SplitPattern::kGpt2},
      {R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
       SplitPattern::kGpt2},
      {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|)"
       R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
       SplitPattern::kLlama3},
      {R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|)"
       R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
       SplitPattern::kLlama3},
      {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|)"
       R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
       SplitPattern::kQwen2},
  };
  for (const Known& known : kKnown) {
    if (known.regex == regex) return known.pattern;
  }
  return std::nullopt;
}

}  // namespace fathom
