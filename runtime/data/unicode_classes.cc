#include "runtime/data/unicode_classes.h"

#include <array>
#include <memory>

#include "runtime/data/unicode_ranges.h"

namespace fathom {
namespace {

constexpr uint32_t kCodePoints = 0x110000;

// Two bits per code point.
using ClassTable = std::array<uint8_t, kCodePoints / 4>;

const ClassTable& Table() {
  static const ClassTable& table = *[] {
    auto* filled = new ClassTable{};
    for (const CharClass c : {CharClass::kLetter, CharClass::kNumber, CharClass::kSpace}) {
      for (const auto [first, last] : UnicodeRanges(c)) {
        for (uint32_t i = first; i <= last; ++i) {
          (*filled)[i / 4] |= static_cast<uint8_t>(c) << (i % 4 * 2);
        }
      }
    }
    return filled;
  }();
  return table;
}

bool IsContinuation(uint8_t byte) { return (byte & 0xc0) == 0x80; }

// The length of the valid UTF-8 sequence of two to four bytes at `at`, and its code point; 0 when
// there is none. The bounds on the second byte rule out overlong forms, surrogates and all beyond
// U+10FFFF (Unicode standard, table 3-7).
int DecodeSequence(const uint8_t* at, int64_t available, uint32_t* code_point) {
  const uint8_t lead = at[0];
  if (lead < 0xc2 || lead > 0xf4) return 0;
  const int size = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  if (available < size) return 0;
  const uint8_t low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
  const uint8_t high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
  if (at[1] < low || at[1] > high) return 0;
  uint32_t value = lead & (0x7f >> size);
  value = value << 6 | (at[1] & 0x3f);
  for (int i = 2; i < size; ++i) {
    if (!IsContinuation(at[i])) return 0;
    value = value << 6 | (at[i] & 0x3f);
  }
  *code_point = value;
  return size;
}

}  // namespace

CharClass ClassOf(uint32_t code_point) {
  return static_cast<CharClass>(Table()[code_point / 4] >> (code_point % 4 * 2) & 3);
}

namespace internal {

Char MultiByteCharAt(const char* at, const char* end) {
  uint32_t code_point;
  const int size = DecodeSequence(reinterpret_cast<const uint8_t*>(at), end - at, &code_point);
  if (size == 0) return {CharClass::kOther, 1};
  return {ClassOf(code_point), size};
}

}  // namespace internal
}  // namespace fathom
