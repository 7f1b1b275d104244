#include "runtime/data/bpe_vocabulary.h"

#include <unordered_set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/status.h"

namespace fathom {

absl::StatusOr<std::array<int32_t, 256>> ByteTokens(const BpeVocabulary& vocabulary,
                                                    const std::string& path) {
  std::array<int32_t, 256> found;
  found.fill(-1);
  std::unordered_set<std::string_view> seen;
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    if (vocabulary.kinds[id] != BpeVocabulary::Kind::kText) continue;
    const std::string& token = vocabulary.tokens[id];
    if (token.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": token ", id, " has no bytes"));
    }
    if (!seen.insert(token).second) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": token ", id, ", \"", ByteAlphabet::Get().Write(token),
                       "\", is there a second time, and every token must be different"));
    }
    if (token.size() == 1) found[static_cast<uint8_t>(token[0])] = id;
  }
  for (int byte = 0; byte < 256; ++byte) {
    if (found[byte] < 0) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s: no token stands for the byte 0x%02x alone, and a byte-level vocabulary has one for "
          "each of the 256 bytes",
          path, byte));
    }
  }
  return found;
}

const ByteAlphabet& ByteAlphabet::Get() {
  static const ByteAlphabet& alphabet = *new ByteAlphabet;
  return alphabet;
}

ByteAlphabet::ByteAlphabet() {
  const auto visible = [](int byte) {
    return (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte != 0xad);
  };
  int count = 0;
  for (const bool wanted : {true, false}) {
    for (int byte = 0; byte < 256; ++byte) {
      if (visible(byte) != wanted) continue;
      const int invisible = wanted ? 0 : 256 + count - 188;  // 188 are visible
      const int code_point = wanted ? byte : invisible;
      std::string& text = written_[byte];
      if (code_point < 0x80) {
        text.push_back(static_cast<char>(code_point));
      } else {
        text.push_back(static_cast<char>(0xc0 | code_point >> 6));
        text.push_back(static_cast<char>(0x80 | (code_point & 0x3f)));
      }
      bytes_[text] = byte;
      order_[count++] = byte;
    }
  }
}

std::string ByteAlphabet::Write(std::string_view bytes) const {
  std::string text;
  for (const char byte : bytes) text += written_[static_cast<uint8_t>(byte)];
  return text;
}

bool ByteAlphabet::Read(std::string_view text, std::string* bytes) const {
  bytes->clear();
  for (size_t at = 0; at < text.size();) {
    const size_t size = static_cast<uint8_t>(text[at]) < 0x80 ? 1 : 2;
    const auto byte = bytes_.find(std::string(text.substr(at, size)));
    if (byte == bytes_.end()) return false;
    bytes->push_back(static_cast<char>(byte->second));
    at += size;
  }
  return true;
}

}  // namespace fathom
