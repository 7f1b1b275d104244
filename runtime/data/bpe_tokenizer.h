#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/data/bpe_merge.h"
#include "runtime/data/bpe_tables.h"
#include "runtime/data/bpe_vocabulary.h"
#include "runtime/data/tokenizer.h"

namespace fathom {

// Byte-level byte-pair encoding. decode(encode(text)) is the text for any bytes, unless the
// vocabulary asks for a prefix space. Thread-safe; each thread that encodes keeps 4 MiB of pieces
// that it met before.
class BpeTokenizer final : public Tokenizer {
 public:
  // `path` is for messages. InvalidArgument for a vocabulary that contradicts itself.
  static absl::StatusOr<std::unique_ptr<BpeTokenizer>> Create(BpeVocabulary vocabulary,
                                                              const std::string& path);

  std::string name() const override { return "bpe"; }
  // Of everything that shapes the tokens, but not of the format of the files: GPT-2's three forms
  // have the same.
  uint64_t hash() const override { return hash_; }
  int64_t vocabulary() const override { return vocabulary_.tokens.size(); }
  int32_t end_of_document() const override { return vocabulary_.end_of_document; }
  void Encode(std::string_view text, std::vector<int32_t>* tokens) const override;
  int64_t LastCut(std::string_view text) const override;
  absl::StatusOr<std::string> Decode(const std::vector<int32_t>& tokens) const override;

 private:
  BpeTokenizer(BpeVocabulary vocabulary, BpeMerger merger);
  void FillPieces();
  uint64_t ComputeHash() const;
  void EncodeText(std::string_view text, std::vector<int32_t>* tokens) const;
  void EncodeLongPiece(std::string_view piece, std::vector<int32_t>* tokens) const;

  const BpeVocabulary vocabulary_;
  const BpeMerger merger_;
  const uint32_t number_;  // differs between the tokenizers of a process
  // Pieces that are one token, up to PieceKey::kMaxSize bytes and above.
  PieceTable short_pieces_;
  std::unordered_map<std::string_view, int32_t> long_pieces_;
  int64_t longest_token_ = 0;
  uint64_t hash_ = 0;
};

}  // namespace fathom
