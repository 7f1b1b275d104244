#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/data/pretokenizer.h"

namespace fathom {

// Byte-pair encoding as its files give it, whatever their format (Sennrich, Haddow, Birch, "Neural
// machine translation of rare words with subword units", ACL 2016; on bytes: Radford et al.,
// "Language models are unsupervised multitask learners", 2019).
struct BpeVocabulary {
  enum class Kind : uint8_t {
    kText,     // comes out of text
    kSpecial,  // never does, and decodes to nothing
    kUnused,   // an id without a token
  };
  struct Merge {
    int32_t left, right, result;
  };

  // By id: the bytes of a text token, the name of a special one.
  std::vector<std::string> tokens;
  std::vector<Kind> kinds;
  // Which neighbours merge, those first that merge first. With `merges_by_bytes` the list is empty:
  // any two neighbours merge whose bytes together are a token, those with the lowest id first.
  std::vector<Merge> merges;
  bool merges_by_bytes = false;
  // A piece that is a token becomes that token, even where merging would not lead to it.
  bool whole_pieces = false;
  SplitPattern pattern = SplitPattern::kGpt2;
  // A space is put before text that does not start with one; then decoding gives that space too.
  bool add_prefix_space = false;
  int32_t end_of_document = -1;
};

// No vocabulary may be larger than this.
inline constexpr int64_t kMaxBpeTokens = 1 << 24;

// The names that an end-of-document token goes by; a vocabulary's first of these is it.
inline constexpr std::string_view kEndOfDocumentNames[] = {"<|endoftext|>", "<|end_of_text|>",
                                                           "</s>"};

// The token of every byte. InvalidArgument, naming `path`, for a byte without a token, a text token
// without bytes, or two text tokens of the same bytes.
absl::StatusOr<std::array<int32_t, 256>> ByteTokens(const BpeVocabulary& vocabulary,
                                                    const std::string& path);

// GPT-2's way to write any bytes as text, for files: the byte as a character of the same number
// where that is visible, and as one from U+0100 on where it is not.
class ByteAlphabet {
 public:
  static const ByteAlphabet& Get();
  std::string Write(std::string_view bytes) const;
  // False when `text` has a character that stands for no byte.
  bool Read(std::string_view text, std::string* bytes) const;
  // The bytes in GPT-2's order of ids: the visible ones first.
  const std::array<uint8_t, 256>& order() const { return order_; }

 private:
  ByteAlphabet();
  std::array<uint8_t, 256> order_;
  std::array<std::string, 256> written_;
  std::unordered_map<std::string, uint8_t> bytes_;
};

}  // namespace fathom
