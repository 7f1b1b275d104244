#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/data/input_parts.h"
#include "runtime/data/tokenizer.h"

namespace fathom {

// The tokens of an input part.
struct EncodedPart {
  std::vector<int32_t> tokens;
  // Offsets in `tokens` behind the end of each document that ends in the part.
  std::vector<int64_t> document_ends;
  int64_t text_bytes = 0;  // of text that was encoded
};

// Reads one field out of JSON lines. One thread at a time.
class JsonLines {
 public:
  explicit JsonLines(std::string field);
  ~JsonLines();

  // What is done with a line's field: the text, or the ids of an array.
  struct Uses {
    std::function<absl::Status(std::string_view)> text;
    std::function<absl::Status(const std::vector<int64_t>&)> ids;
  };
  // Goes through the lines of a part; empty ones are passed over. InvalidArgument, naming file and
  // line, for a line that is no JSON object, lacks the field, or has something else in it; errors
  // of `uses` get the same place in front.
  absl::Status ForEach(const InputPart& part, const Uses& uses);

 private:
  struct Parser;
  absl::Status Use(std::string_view line, const Uses& uses);

  const std::string field_;
  const std::unique_ptr<Parser> parser_;
  std::vector<int64_t> ids_;
};

// Makes tokens of parts. One thread at a time.
class DocumentEncoder {
 public:
  // `field`: of JSON lines. `tokenizer` must outlive the encoder.
  DocumentEncoder(const Tokenizer& tokenizer, const std::string& field)
      : tokenizer_(tokenizer), lines_(field) {}

  // Each document is closed by one end-of-document token; an array of ids that ends in one keeps
  // it. OutOfRange, naming file and line, for an id outside the vocabulary.
  absl::StatusOr<EncodedPart> Encode(const InputPart& part);

 private:
  const Tokenizer& tokenizer_;
  JsonLines lines_;
};

}  // namespace fathom
