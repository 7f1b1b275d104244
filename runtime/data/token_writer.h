#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace fathom {

// What a token file says of the tokenizer that made it.
struct TokenFileInfo {
  std::string tokenizer;  // its name
  uint64_t tokenizer_hash = 0;
  int64_t vocabulary = 0;
};

// Writes tokens under a temporary name and renames at the end, so that an interrupted run leaves
// nothing under the final name. Destroying a writer that has not finished removes what it wrote.
class TokenWriter {
 public:
  virtual ~TokenWriter() = default;
  // More tokens of the current document. OutOfRange for one outside the vocabulary.
  virtual absl::Status Append(const int32_t* tokens, int64_t count) = 0;
  // Ends the current document, which must hold a token (its end-of-document token at least).
  virtual absl::Status EndDocument() = 0;
  // Completes the file, makes it durable and gives it its name. The last document must be ended,
  // and there must be one.
  virtual absl::Status Finish() = 0;

  virtual int64_t tokens() const = 0;
  virtual int64_t documents() const = 0;
  // XXH3 of the stored tokens; valid after Finish.
  virtual uint64_t tokens_checksum() const = 0;
};

}  // namespace fathom
