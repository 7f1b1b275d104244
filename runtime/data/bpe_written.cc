#include "runtime/data/bpe_written.h"

#include "absl/strings/str_cat.h"
#include "core/status.h"

namespace fathom {

using nlohmann::json;
using Kind = BpeVocabulary::Kind;

absl::Status WrittenVocabulary::Wrong(const std::string& what) const {
  return absl::InvalidArgumentError(absl::StrCat(path_, ": ", what));
}

absl::Status WrittenVocabulary::AddTokens(const json& object) {
  if (!object.is_object()) return Wrong("the vocabulary is not an object from token to id");
  for (const auto& [token, id] : object.items()) FATHOM_RETURN_IF_ERROR(AddToken(token, id));
  return absl::OkStatus();
}

absl::Status WrittenVocabulary::AddToken(const std::string& token, const json& id) {
  if (!id.is_number_unsigned() || id.get<uint64_t>() >= kMaxBpeTokens) {
    return Wrong(absl::StrCat("the id of token \"", token, "\" is ", id.dump(),
                              ", and must be a whole number from 0 to ", kMaxBpeTokens - 1));
  }
  const auto [entry, added] = ids_.insert({token, id.get<int32_t>()});
  if (!added && entry->second != id.get<int32_t>()) {
    return Wrong(
        absl::StrCat("token \"", token, "\" has two ids, ", entry->second, " and ", id.dump()));
  }
  return absl::OkStatus();
}

absl::StatusOr<int32_t> WrittenVocabulary::MergedToken(const std::string& token,
                                                       const std::string& merge) const {
  const auto id = ids_.find(token);
  if (id == ids_.end()) {
    return Wrong(absl::StrCat("merge ", merges_.size() + 1, ", \"", merge, "\", needs the token \"",
                              token, "\", which is not in the vocabulary"));
  }
  return id->second;
}

absl::Status WrittenVocabulary::AddMerge(const std::string& left, const std::string& right) {
  const std::string merge = absl::StrCat(left, " ", right);
  BpeVocabulary::Merge ids;
  FATHOM_ASSIGN_OR_RETURN(ids.left, MergedToken(left, merge));
  FATHOM_ASSIGN_OR_RETURN(ids.right, MergedToken(right, merge));
  FATHOM_ASSIGN_OR_RETURN(ids.result, MergedToken(left + right, merge));
  merges_.push_back(ids);
  return absl::OkStatus();
}

absl::Status WrittenVocabulary::Finish(bool all_are_text, BpeVocabulary* vocabulary) const {
  const int64_t count = ids_.size();
  std::vector<const std::string*> written(count);
  for (const auto& [token, id] : ids_) {
    if (id >= count) {
      return Wrong(absl::StrCat("token \"", token, "\" has the id ", id, ", but the ids of ", count,
                                " tokens are 0 to ", count - 1));
    }
    if (written[id] != nullptr) {
      return Wrong(absl::StrCat("the tokens \"", std::min(*written[id], token), "\" and \"",
                                std::max(*written[id], token), "\" have the same id, ", id));
    }
    written[id] = &token;
  }
  vocabulary->tokens.resize(count);
  vocabulary->kinds.assign(count, all_are_text ? Kind::kText : Kind::kSpecial);
  for (const auto& merge : merges_) {
    if (special_.count(*written[merge.result]) > 0) continue;  // so that it never comes out of text
    vocabulary->merges.push_back(merge);
    vocabulary->kinds[merge.result] = Kind::kText;
  }
  for (int64_t id = 0; id < count; ++id) {
    std::string bytes;
    const bool readable = ByteAlphabet::Get().Read(*written[id], &bytes);
    Kind& kind = vocabulary->kinds[id];
    if (readable && bytes.size() == 1) kind = Kind::kText;
    if (special_.count(*written[id]) > 0) kind = Kind::kSpecial;
    if (kind == Kind::kText && !readable) {
      return Wrong(absl::StrCat("token ", id, ", \"", *written[id],
                                "\", is not written in the characters of a byte-level vocabulary"));
    }
    vocabulary->tokens[id] = kind == Kind::kText ? bytes : *written[id];
  }
  FATHOM_ASSIGN_OR_RETURN(vocabulary->end_of_document, FindEndOfDocument(*vocabulary, path_));
  return absl::OkStatus();
}

absl::StatusOr<json> ParseJsonObject(const std::string& text, const std::string& path) {
  json parsed = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (parsed.is_discarded()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": this is not valid JSON"));
  }
  if (!parsed.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": this JSON is not an object"));
  }
  return parsed;
}

absl::StatusOr<int32_t> FindEndOfDocument(const BpeVocabulary& vocabulary,
                                          const std::string& path) {
  for (const std::string_view name : kEndOfDocumentNames) {
    for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
      if (vocabulary.kinds[id] == Kind::kSpecial && vocabulary.tokens[id] == name) return id;
    }
  }
  return absl::InvalidArgumentError(absl::StrCat(
      path,
      ": there is no end-of-document token; a special token must be named <|endoftext|>, "
      "<|end_of_text|> or </s>"));
}

}  // namespace fathom
