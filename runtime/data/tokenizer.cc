#include "runtime/data/tokenizer.h"

#include "absl/strings/str_cat.h"
#include "core/random.h"
#include "core/status.h"
#include "runtime/data/bpe_files.h"
#include "runtime/data/bpe_tokenizer.h"

namespace fathom {
namespace {

class ByteTokenizer final : public Tokenizer {
 public:
  std::string name() const override { return "bytes"; }
  uint64_t hash() const override { return HashName("bytes"); }
  int64_t vocabulary() const override { return 257; }
  int32_t end_of_document() const override { return 256; }

  void Encode(std::string_view text, std::vector<int32_t>* tokens) const override {
    tokens->reserve(tokens->size() + text.size());
    for (const char c : text) tokens->push_back(static_cast<unsigned char>(c));
  }

  int64_t LastCut(std::string_view text) const override { return text.size(); }

  absl::StatusOr<std::string> Decode(const std::vector<int32_t>& tokens) const override {
    std::string text;
    for (const int32_t token : tokens) {
      if (token < 0 || token >= vocabulary()) {
        return absl::OutOfRangeError(absl::StrCat(
            "token ", token, " is outside of the tokenizer's vocabulary of ", vocabulary()));
      }
      if (token != end_of_document()) text.push_back(static_cast<char>(token));
    }
    return text;
  }
};

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> MakeTokenizer(std::string_view name, FileSystem& files) {
  if (name == "bytes") return std::make_unique<ByteTokenizer>();
  const std::string path(name);
  if (!files.Exists(path)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tokenizer \"", path, "\" is neither \"bytes\" nor a directory or file with a vocabulary"));
  }
  FATHOM_ASSIGN_OR_RETURN(BpeVocabulary vocabulary, ReadBpeVocabulary(files, path));
  return BpeTokenizer::Create(std::move(vocabulary), path);
}

}  // namespace fathom
