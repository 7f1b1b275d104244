#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "runtime/data/bpe_vocabulary.h"

namespace fathom {

// A vocabulary in the making, from a file that writes tokens in ByteAlphabet's characters. Errors
// are InvalidArgument and begin with the file's path.
class WrittenVocabulary {
 public:
  explicit WrittenVocabulary(std::string path) : path_(std::move(path)) {}

  // The tokens of a JSON object from token to id.
  absl::Status AddTokens(const nlohmann::json& object);
  // A token; once more with the same id is fine.
  absl::Status AddToken(const std::string& token, const nlohmann::json& id);
  // A token that was added is special, also where a merge leads to it.
  void MarkSpecial(const std::string& token) { special_[token] = true; }
  // "left right", or a JSON array of the two.
  absl::Status AddMerge(const std::string& left, const std::string& right);
  // Tokens, kinds, merges and the end of documents. The ids must be 0 to n - 1. Tokens that are
  // neither a byte nor merged are special; with `all_are_text` only those marked are.
  absl::Status Finish(bool all_are_text, BpeVocabulary* vocabulary) const;

 private:
  absl::Status Wrong(const std::string& what) const;
  absl::StatusOr<int32_t> MergedToken(const std::string& token, const std::string& merge) const;

  std::string path_;
  std::unordered_map<std::string, int32_t> ids_;
  std::unordered_map<std::string, bool> special_;
  std::vector<BpeVocabulary::Merge> merges_;
};

// The JSON text of a file. InvalidArgument, naming the file, for what is no JSON object.
absl::StatusOr<nlohmann::json> ParseJsonObject(const std::string& text, const std::string& path);

// The id of the first of kEndOfDocumentNames that is a special token; InvalidArgument without one.
absl::StatusOr<int32_t> FindEndOfDocument(const BpeVocabulary& vocabulary, const std::string& path);

}  // namespace fathom
