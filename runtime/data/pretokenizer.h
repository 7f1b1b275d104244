#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace fathom {

// How text is cut into pieces before pairs are merged; no token crosses a cut. The classes are
// those of CharClass, on bytes that are no UTF-8 as well.
enum class SplitPattern : uint8_t {
  // '(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
  kGpt2,
  // Llama 3, and GPT-4 as Hugging Face has it:
  // (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|
  //  ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
  kLlama3,
  // GPT-4 (cl100k) as tiktoken has it: the same with \s+$ before \s*[\r\n]+, so that the spaces at
  // the end of the text are one piece.
  kCl100k,
  // Qwen2 and later: as Llama 3, with \p{N} instead of \p{N}{1,3}.
  kQwen2,
};

// The end of the piece that starts at `begin`, which must lie before `end`, the end of the text.
// Takes time in proportion to the piece, but for one character or run of spaces that it looks past.
const char* EndOfPiece(SplitPattern pattern, const char* begin, const char* end);

// The largest offset in `text` at which it may be cut, whatever follows it: the pieces of the two
// parts, one after the other, are those of the whole. The second part then starts with a white
// space of ASCII, with `at_spaces` always with U+0020. 0: there is no such place.
int64_t LastSafeCut(SplitPattern pattern, std::string_view text, bool at_spaces);

// The pattern that a regular expression means; nothing for one that is not known.
std::optional<SplitPattern> SplitPatternOfRegex(std::string_view regex);

}  // namespace fathom
