#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace fathom::token_format {

// The constants of Fathom's token file, shared by its reader and writer; docs/formats.md has the
// grammar.

static_assert(std::endian::native == std::endian::little,
              "token files are little-endian, and are copied as they are");

inline constexpr char kExtension[] = ".tokens";
inline constexpr std::string_view kMagic = "FTHMTOKS";
inline constexpr std::string_view kEndMagic = "FTHMTEND";
inline constexpr uint32_t kVersion = 1;
inline constexpr int64_t kFixedHeadSize = 32;  // before the tokenizer's name
inline constexpr int64_t kFooterSize = 40;

// Rounded up to a multiple of 8.
inline int64_t Padded(int64_t bytes) { return (bytes + 7) / 8 * 8; }

template <class T>
T Load(const char* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

// Appends the bytes of `value`.
template <class T>
void Store(T value, std::string* to) {
  to->append(reinterpret_cast<const char*>(&value), sizeof(T));
}

// Tokens of `width` bytes, 2 (unsigned) or 4, to and from 32-bit ones. `stored` need not be
// aligned.
void LoadTokens(const char* stored, int64_t width, int64_t count, int32_t* tokens);
// Appends; the tokens must fit.
void StoreTokens(const int32_t* tokens, int64_t width, int64_t count, std::string* to);
// The first of the tokens outside 0 to vocabulary - 1; -1: there is none.
int64_t FirstOutside(const int32_t* tokens, int64_t count, int64_t vocabulary);

// XXH3 of head, table of document ends and the first three fields of the footer, one after another.
uint64_t FrameChecksum(std::string_view head, std::string_view table, std::string_view footer);

}  // namespace fathom::token_format
