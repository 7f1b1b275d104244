#pragma once

#include <array>
#include <cstdint>

namespace fathom {

// The classes of characters that split patterns speak of, as \p{L}, \p{N} and \s of Unicode 16.0
// (the version that tiktoken splits by; a newer one would split new characters differently).
enum class CharClass : uint8_t { kOther, kLetter, kNumber, kSpace };

// One character of text, which need not be UTF-8: a byte that is not part of a valid sequence
// (overlong forms and surrogates are not valid) is one character of class kOther.
struct Char {
  CharClass char_class;
  int size;  // bytes
};

// The class of a code point below 0x110000.
CharClass ClassOf(uint32_t code_point);

namespace internal {

constexpr std::array<CharClass, 128> AsciiClasses() {
  std::array<CharClass, 128> classes{};
  for (int c = 'A'; c <= 'Z'; ++c) classes[c] = CharClass::kLetter;
  for (int c = 'a'; c <= 'z'; ++c) classes[c] = CharClass::kLetter;
  for (int c = '0'; c <= '9'; ++c) classes[c] = CharClass::kNumber;
  for (int c = '\t'; c <= '\r'; ++c) classes[c] = CharClass::kSpace;
  classes[' '] = CharClass::kSpace;
  return classes;
}
inline constexpr std::array<CharClass, 128> kAsciiClass = AsciiClasses();

Char MultiByteCharAt(const char* at, const char* end);

}  // namespace internal

// The character at `at`, which must lie before `end`.
inline Char CharAt(const char* at, const char* end) {
  const auto byte = static_cast<uint8_t>(*at);
  if (byte < 0x80) [[likely]]
    return {internal::kAsciiClass[byte], 1};
  return internal::MultiByteCharAt(at, end);
}

}  // namespace fathom
