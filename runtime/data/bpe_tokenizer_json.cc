#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/status.h"
#include "runtime/data/bpe_files.h"
#include "runtime/data/bpe_written.h"

namespace fathom {
namespace {

using nlohmann::json;

// What a message quotes of JSON.
std::string Quote(const json& value) {
  const std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  return text.size() <= 300 ? text : text.substr(0, 300) + "...";
}

absl::Status Wrong(const std::string& path, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", what));
}

// A field, or null where the object lacks it or is none.
const json& Field(const json& object, const char* name) {
  static const json& null = *new json;
  if (!object.is_object()) return null;
  const auto found = object.find(name);
  return found == object.end() ? null : *found;
}

bool Flag(const json& object, const char* name, bool otherwise) {
  const json& value = Field(object, name);
  return value.is_boolean() ? value.get<bool>() : otherwise;
}

bool IsType(const json& object, const char* type) { return Field(object, "type") == type; }

// Null, "", 0 or false: as if the field were not there.
bool IsOff(const json& value) {
  return value.is_null() || value == "" || value == 0 || value == false;
}

// The pattern of a Split whose pieces are the matches; every known pattern matches all text.
std::optional<SplitPattern> PatternOfSplit(const json& split) {
  const json& regex = Field(Field(split, "pattern"), "Regex");
  const bool invert = Flag(split, "invert", false);
  const json& behavior = Field(split, "behavior");
  const bool keeps_matches =
      (behavior == "Isolated" && !invert) || (behavior == "Removed" && invert);
  if (!IsType(split, "Split") || !regex.is_string() || !keeps_matches) return std::nullopt;
  return SplitPatternOfRegex(regex.get<std::string>());
}

bool ReadSteps(const std::vector<json>& steps, BpeVocabulary* vocabulary) {
  if (steps.empty() || !IsType(steps.back(), "ByteLevel")) return false;
  const bool use_regex = Flag(steps.back(), "use_regex", true);
  vocabulary->add_prefix_space = Flag(steps.back(), "add_prefix_space", true);
  if (steps.size() == 1 && use_regex) {
    vocabulary->pattern = SplitPattern::kGpt2;
    return true;
  }
  if (steps.size() != 2 || use_regex || vocabulary->add_prefix_space) return false;
  const std::optional<SplitPattern> pattern = PatternOfSplit(steps[0]);
  if (pattern) vocabulary->pattern = *pattern;
  return pattern.has_value();
}

absl::Status ReadPreTokenizer(const json& pre_tokenizer, const std::string& path,
                              BpeVocabulary* vocabulary) {
  std::vector<json> steps = {pre_tokenizer};
  if (IsType(pre_tokenizer, "Sequence") && Field(pre_tokenizer, "pretokenizers").is_array()) {
    steps = Field(pre_tokenizer, "pretokenizers").get<std::vector<json>>();
  }
  if (ReadSteps(steps, vocabulary)) return absl::OkStatus();
  return Wrong(path, absl::StrCat("the pre_tokenizer ", Quote(pre_tokenizer),
                                  " is not supported; ByteLevel is, alone or after a Split by the "
                                  "pattern of GPT-2, GPT-4, Llama 3 or Qwen2"));
}

absl::Status CheckModel(const json& model, const std::string& path) {
  if (!IsType(model, "BPE") && !Field(model, "type").is_null()) {
    return Wrong(path, absl::StrCat("the model's type is ", Quote(Field(model, "type")),
                                    ", and only byte-level \"BPE\" is supported"));
  }
  for (const char* name :
       {"dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"}) {
    if (IsOff(Field(model, name))) continue;
    return Wrong(path, absl::StrCat("model.", name, " is ", Quote(Field(model, name)),
                                    ", and a byte-level BPE has none"));
  }
  return absl::OkStatus();
}

absl::Status ReadMerges(const json& merges, const std::string& path, WrittenVocabulary* written) {
  if (!merges.is_array()) return Wrong(path, "model.merges is not an array");
  int64_t number = 0;
  for (const json& merge : merges) {
    ++number;
    std::vector<std::string> parts;
    if (merge.is_string()) {
      parts = absl::StrSplit(merge.get_ref<const std::string&>(), ' ');
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() &&
               merge[1].is_string()) {
      parts = merge.get<std::vector<std::string>>();
    }
    if (parts.size() != 2) {
      return Wrong(path, absl::StrCat("merge ", number, ", ", Quote(merge), ", is not two tokens"));
    }
    FATHOM_RETURN_IF_ERROR(written->AddMerge(parts[0], parts[1]));
  }
  return absl::OkStatus();
}

absl::Status ReadAddedTokens(const json& added, const std::string& path,
                             WrittenVocabulary* written) {
  if (added.is_null()) return absl::OkStatus();
  if (!added.is_array()) return Wrong(path, "added_tokens is not an array");
  for (const json& token : added) {
    const json& content = Field(token, "content");
    if (!content.is_string()) {
      return Wrong(path, absl::StrCat("the added token ", Quote(token), " has no content"));
    }
    FATHOM_RETURN_IF_ERROR(written->AddToken(content.get<std::string>(), Field(token, "id")));
    written->MarkSpecial(content.get<std::string>());
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<BpeVocabulary> ReadTokenizerJson(FileSystem& files, const std::string& path) {
  FATHOM_ASSIGN_OR_RETURN(const std::string text, ReadFile(files, path));
  FATHOM_ASSIGN_OR_RETURN(const json file, ParseJsonObject(text, path));
  const json& model = Field(file, "model");
  if (!model.is_object()) return Wrong(path, "there is no model, as a tokenizer.json has");
  FATHOM_RETURN_IF_ERROR(CheckModel(model, path));
  if (!Field(file, "normalizer").is_null()) {
    return Wrong(path, absl::StrCat("the normalizer ", Quote(Field(file, "normalizer")),
                                    " would change the text, and only null is supported"));
  }
  BpeVocabulary vocabulary;
  FATHOM_RETURN_IF_ERROR(ReadPreTokenizer(Field(file, "pre_tokenizer"), path, &vocabulary));
  vocabulary.whole_pieces = Flag(model, "ignore_merges", false);

  WrittenVocabulary written(path);
  FATHOM_RETURN_IF_ERROR(written.AddTokens(Field(model, "vocab")));
  FATHOM_RETURN_IF_ERROR(ReadMerges(Field(model, "merges"), path, &written));
  FATHOM_RETURN_IF_ERROR(ReadAddedTokens(Field(file, "added_tokens"), path, &written));
  FATHOM_RETURN_IF_ERROR(written.Finish(vocabulary.whole_pieces, &vocabulary));
  return vocabulary;
}

}  // namespace fathom
