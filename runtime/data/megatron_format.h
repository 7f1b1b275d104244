#pragma once

#include <cstdint>
#include <string_view>

namespace fathom::megatron_format {

// The constants of Megatron-LM's .idx, shared by reader and writer; docs/formats.md has the
// grammar.
inline constexpr std::string_view kMagic("MMIDIDX\0\0", 9);
inline constexpr uint64_t kVersion = 1;
inline constexpr uint8_t kInt32 = 4;  // codes of token types
inline constexpr uint8_t kUint16 = 8;
inline constexpr int64_t kHeadSize = 34;
// Megatron-LM stores vocabularies from this size on as int32.
inline constexpr int64_t kWideVocabulary = 65500;

}  // namespace fathom::megatron_format
