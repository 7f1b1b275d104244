#include "runtime/data/token_format.h"

#include <algorithm>

#include "runtime/checksum.h"

namespace fathom::token_format {

void LoadTokens(const char* stored, int64_t width, int64_t count, int32_t* tokens) {
  if (count == 0) return;  // nothing may have no address, which memcpy must not be given
  if (width == 4) {
    std::memcpy(tokens, stored, 4 * count);
    return;
  }
  for (int64_t i = 0; i < count; ++i) tokens[i] = Load<uint16_t>(stored + 2 * i);
}

void StoreTokens(const int32_t* tokens, int64_t width, int64_t count, std::string* to) {
  if (count == 0) return;
  const size_t before = to->size();
  to->resize(before + width * count);
  char* out = to->data() + before;
  if (width == 4) {
    std::memcpy(out, tokens, 4 * count);
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    const auto token = static_cast<uint16_t>(tokens[i]);
    std::memcpy(out + 2 * i, &token, 2);
  }
}

int64_t FirstOutside(const int32_t* tokens, int64_t count, int64_t vocabulary) {
  uint32_t highest = 0;  // a negative token is a high one
  for (int64_t i = 0; i < count; ++i) highest = std::max(highest, static_cast<uint32_t>(tokens[i]));
  if (highest < vocabulary) return -1;
  int64_t i = 0;
  while (static_cast<uint32_t>(tokens[i]) < vocabulary) ++i;
  return i;
}

uint64_t FrameChecksum(std::string_view head, std::string_view table, std::string_view footer) {
  ChecksumStream stream;
  for (const std::string_view part : {head, table, footer}) stream.Add(part);
  return stream.value();
}

}  // namespace fathom::token_format
