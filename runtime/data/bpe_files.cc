#include "runtime/data/bpe_files.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/check.h"
#include "core/status.h"
#include "runtime/data/bpe_written.h"

namespace fathom {
namespace {

using Kind = BpeVocabulary::Kind;

constexpr char kMergesName[] = "vocab.bpe";
constexpr char kTokensName[] = "encoder.json";
constexpr char kVersionLine[] = "#version: 0.2\n";

}  // namespace

absl::StatusOr<BpeVocabulary> ReadBpeVocabulary(FileSystem& files, const std::string& path) {
  if (files.IsDirectory(path)) {
    if (files.Exists(JoinPath(path, kMergesName))) return ReadGpt2Files(files, path);
    const std::string json = JoinPath(path, "tokenizer.json");
    if (files.Exists(json)) return ReadTokenizerJson(files, json);
    return absl::NotFoundError(absl::StrCat(path, ": this directory has neither ", kMergesName,
                                            " with ", kTokensName, " nor tokenizer.json"));
  }
  FATHOM_ASSIGN_OR_RETURN(const auto file, files.OpenForRead(path));
  const std::string_view text = file->contents();
  const size_t first = text.find_first_not_of(" \t\r\n");
  const bool json = first != std::string_view::npos && text[first] == '{';
  return json ? ReadTokenizerJson(files, path) : ReadTiktoken(files, path);
}

absl::StatusOr<BpeVocabulary> ReadGpt2Files(FileSystem& files, const std::string& directory) {
  const std::string tokens_path = JoinPath(directory, kTokensName);
  const std::string merges_path = JoinPath(directory, kMergesName);
  FATHOM_ASSIGN_OR_RETURN(const std::string tokens_text, ReadFile(files, tokens_path));
  FATHOM_ASSIGN_OR_RETURN(const auto tokens, ParseJsonObject(tokens_text, tokens_path));
  FATHOM_ASSIGN_OR_RETURN(const std::string merges, ReadFile(files, merges_path));

  WrittenVocabulary written(tokens_path);
  FATHOM_RETURN_IF_ERROR(written.AddTokens(tokens));
  int64_t number = 0;
  for (absl::string_view line : absl::StrSplit(merges, '\n')) {
    ++number;
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    if (line.empty() || (number == 1 && line.substr(0, 9) == "#version:")) continue;
    const std::vector<std::string> parts = absl::StrSplit(line, ' ');
    if (parts.size() != 2 || parts[0].empty() || parts[1].empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat(merges_path, ": line ", number, ", \"", line.substr(0, 80),
                       "\", is not two tokens with one space between them"));
    }
    FATHOM_RETURN_IF_ERROR(written.AddMerge(parts[0], parts[1]));
  }
  BpeVocabulary vocabulary;
  FATHOM_RETURN_IF_ERROR(written.Finish(/*all_are_text=*/false, &vocabulary));
  return vocabulary;
}

absl::Status WriteGpt2Files(FileSystem& files, const std::string& directory,
                            const BpeVocabulary& vocabulary) {
  FATHOM_CHECK(!vocabulary.merges_by_bytes && vocabulary.pattern == SplitPattern::kGpt2);
  const ByteAlphabet& alphabet = ByteAlphabet::Get();
  std::vector<std::string> written;
  nlohmann::ordered_json tokens = nlohmann::ordered_json::object();
  auto& entries = tokens.get_ref<nlohmann::ordered_json::object_t&>();
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    FATHOM_CHECK(vocabulary.kinds[id] != Kind::kUnused) << "id " << id;
    const std::string& token = vocabulary.tokens[id];
    written.push_back(vocabulary.kinds[id] == Kind::kText ? alphabet.Write(token) : token);
    // Appended without the search for an earlier one of the same name, which takes linear time.
    entries.push_back({written.back(), nlohmann::ordered_json(id)});
  }
  std::string merges = kVersionLine;
  for (const auto [left, right, result] : vocabulary.merges) {
    absl::StrAppend(&merges, written[left], " ", written[right], "\n");
  }
  FATHOM_RETURN_IF_ERROR(files.CreateDirectories(directory));
  FATHOM_RETURN_IF_ERROR(
      WriteFileAtomically(files, JoinPath(directory, kTokensName),
                          tokens.dump(/*indent=*/-1, /*indent_char=*/' ', /*ensure_ascii=*/true)));
  return WriteFileAtomically(files, JoinPath(directory, kMergesName), merges);
}

}  // namespace fathom
