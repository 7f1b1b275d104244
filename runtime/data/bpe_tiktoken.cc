#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/status.h"
#include "runtime/data/bpe_files.h"

namespace fathom {
namespace {

using Kind = BpeVocabulary::Kind;

struct KnownVocabulary {
  int64_t tokens;
  SplitPattern pattern;
  int32_t end_of_document;
};
constexpr KnownVocabulary kKnown[] = {
    {100256, SplitPattern::kCl100k, 100257},
    {128000, SplitPattern::kLlama3, 128001},
    {151643, SplitPattern::kQwen2, 151643},
};
constexpr int64_t kO200kTokens = 199998;

struct RankedToken {
  std::string bytes;
  int64_t rank;
};

absl::Status Wrong(const std::string& path, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", what));
}

absl::StatusOr<std::vector<RankedToken>> ParseLines(const std::string& text,
                                                    const std::string& path) {
  std::vector<RankedToken> tokens;
  int64_t number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    if (line.empty()) continue;
    const std::vector<absl::string_view> parts = absl::StrSplit(line, ' ');
    RankedToken token;
    if (parts.size() != 2 || !absl::Base64Unescape(parts[0], &token.bytes) || token.bytes.empty() ||
        !absl::SimpleAtoi(parts[1], &token.rank)) {
      return Wrong(path, absl::StrCat("line ", number, ", \"", absl::CEscape(line.substr(0, 80)),
                                      "\", is not a token in base64, a space and its rank"));
    }
    tokens.push_back(std::move(token));
  }
  if (tokens.empty()) return Wrong(path, "the file has no tokens");
  return tokens;
}

// Puts each token at its rank. One id below the last may be left out; it is returned, else -1.
absl::StatusOr<int32_t> PlaceTokens(std::vector<RankedToken> ranked, const std::string& path,
                                    BpeVocabulary* vocabulary) {
  const int64_t count = ranked.size();
  vocabulary->tokens.resize(count + 1);
  vocabulary->kinds.assign(count + 1, Kind::kUnused);
  for (RankedToken& token : ranked) {
    if (token.rank < 0 || token.rank > count) {
      return Wrong(path, absl::StrCat("rank ", token.rank, " is not among 0 to ", count, ", and ",
                                      count, " tokens may leave out one rank at most"));
    }
    if (vocabulary->kinds[token.rank] != Kind::kUnused) {
      return Wrong(path, absl::StrCat("rank ", token.rank, " is there twice"));
    }
    vocabulary->kinds[token.rank] = Kind::kText;
    vocabulary->tokens[token.rank] = std::move(token.bytes);
  }
  const auto& kinds = vocabulary->kinds;
  return std::find(kinds.begin(), kinds.end(), Kind::kUnused) - kinds.begin();
}

}  // namespace

absl::StatusOr<BpeVocabulary> ReadTiktoken(FileSystem& files, const std::string& path) {
  FATHOM_ASSIGN_OR_RETURN(const std::string text, ReadFile(files, path));
  FATHOM_ASSIGN_OR_RETURN(std::vector<RankedToken> ranked, ParseLines(text, path));
  const int64_t count = ranked.size();
  if (count == kO200kTokens) {
    return Wrong(path, absl::StrCat(count,
                                    " tokens are the vocabulary o200k, whose way to split "
                                    "text is not among those that are known: GPT-2, "
                                    "cl100k, Llama 3, Qwen"));
  }
  BpeVocabulary vocabulary;
  vocabulary.merges_by_bytes = true;
  vocabulary.whole_pieces = true;
  FATHOM_ASSIGN_OR_RETURN(vocabulary.end_of_document,
                          PlaceTokens(std::move(ranked), path, &vocabulary));
  for (const KnownVocabulary& known : kKnown) {
    if (known.tokens != count || vocabulary.end_of_document != count) continue;
    vocabulary.pattern = known.pattern;
    vocabulary.end_of_document = known.end_of_document;
  }
  const int64_t size = std::max<int64_t>(count, vocabulary.end_of_document) + 1;
  vocabulary.tokens.resize(size);
  vocabulary.kinds.resize(size, Kind::kUnused);
  vocabulary.tokens[vocabulary.end_of_document] = std::string(kEndOfDocumentNames[0]);
  vocabulary.kinds[vocabulary.end_of_document] = Kind::kSpecial;
  return vocabulary;
}

}  // namespace fathom
