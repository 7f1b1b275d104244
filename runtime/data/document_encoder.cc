#include "runtime/data/document_encoder.h"

#include <simdjson.h>

#include <utility>

#include "core/status.h"

namespace fathom {
namespace {

namespace dom = simdjson::dom;
static_assert(InputPart::kPadding >= simdjson::SIMDJSON_PADDING);

bool IsBlank(std::string_view line) {
  return line.find_first_not_of(" \t\r") == std::string_view::npos;
}

absl::Status ReadIds(const dom::array& array, const std::string& field, std::vector<int64_t>* ids) {
  ids->clear();
  for (const dom::element element : array) {
    int64_t id;
    if (element.get(id) != simdjson::SUCCESS) {
      return absl::InvalidArgumentError(
          absl::StrCat("entry ", ids->size(), " of the array \"", field, "\" is no whole number"));
    }
    ids->push_back(id);
  }
  return absl::OkStatus();
}

}  // namespace

struct JsonLines::Parser {
  dom::parser json;
};

JsonLines::JsonLines(std::string field)
    : field_(std::move(field)), parser_(std::make_unique<Parser>()) {}
JsonLines::~JsonLines() = default;

absl::Status JsonLines::Use(std::string_view line, const Uses& uses) {
  dom::element root;
  const auto error = parser_->json.parse(line.data(), line.size(), false).get(root);
  if (error != simdjson::SUCCESS) {
    return absl::InvalidArgumentError(
        absl::StrCat("the line is not valid JSON (", simdjson::error_message(error), ")"));
  }
  dom::object object;
  if (root.get(object) != simdjson::SUCCESS) {
    return absl::InvalidArgumentError("the line is not a JSON object");
  }
  dom::element value;
  if (object.at_key(field_).get(value) != simdjson::SUCCESS) {
    return absl::InvalidArgumentError(
        absl::StrCat("the object has no field \"", field_, "\"; --field names the one to use"));
  }
  std::string_view text;
  if (value.get(text) == simdjson::SUCCESS) return uses.text(text);
  dom::array array;
  if (value.get(array) != simdjson::SUCCESS) {
    return absl::InvalidArgumentError(
        absl::StrCat("field \"", field_, "\" is neither a string nor an array of token ids"));
  }
  FATHOM_RETURN_IF_ERROR(ReadIds(array, field_, &ids_));
  return uses.ids(ids_);
}

absl::Status JsonLines::ForEach(const InputPart& part, const Uses& uses) {
  std::string_view rest = part.text();
  for (int64_t number = part.first_line; !rest.empty(); ++number) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
    if (IsBlank(line)) continue;
    if (const absl::Status status = Use(line, uses); !status.ok()) {
      return absl::Status(status.code(),
                          absl::StrCat(part.source, ", line ", number, ": ", status.message()));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<EncodedPart> DocumentEncoder::Encode(const InputPart& part) {
  EncodedPart encoded;
  std::vector<int32_t>& tokens = encoded.tokens;
  const auto end_document = [&] {
    tokens.push_back(tokenizer_.end_of_document());
    encoded.document_ends.push_back(tokens.size());
  };
  const auto add_text = [&](std::string_view text) {
    tokenizer_.Encode(text, &tokens);
    encoded.text_bytes += text.size();
  };
  if (part.first_line == 0) {
    add_text(part.text());
    if (part.ends_document) end_document();
    return encoded;
  }
  JsonLines::Uses uses;
  uses.text = [&](std::string_view text) {
    add_text(text);
    end_document();
    return absl::OkStatus();
  };
  uses.ids = [&](const std::vector<int64_t>& ids) -> absl::Status {
    for (const int64_t id : ids) {
      if (id < 0 || id >= tokenizer_.vocabulary()) {
        return absl::OutOfRangeError(absl::StrCat("token id ", id,
                                                  " is outside of the tokenizer's vocabulary of ",
                                                  tokenizer_.vocabulary()));
      }
      tokens.push_back(static_cast<int32_t>(id));
    }
    if (!ids.empty() && ids.back() == tokenizer_.end_of_document()) {
      encoded.document_ends.push_back(tokens.size());
    } else {
      end_document();
    }
    return absl::OkStatus();
  };
  FATHOM_RETURN_IF_ERROR(lines_.ForEach(part, uses));
  return encoded;
}

}  // namespace fathom
