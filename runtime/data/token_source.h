#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace fathom {

// Tokens in order, cut into documents; read by many threads. Each file format is one
// implementation.
class TokenSource {
 public:
  virtual ~TokenSource() = default;
  // For messages.
  virtual const std::string& path() const = 0;
  virtual int64_t tokens() const = 0;
  virtual int64_t documents() const = 0;
  // The offset behind the last token of document 0 <= `document` < documents(); that token is the
  // document's end-of-document token. Ends do not fall; other programs' files may have documents
  // without tokens or without that token.
  virtual int64_t DocumentEnd(int64_t document) const = 0;
  // False where the format does not record documents, and all is one.
  virtual bool knows_documents() const { return true; }
  // The number of different tokens that the file was written for; 0 where the format does not say.
  virtual int64_t vocabulary() const = 0;
  // Tokenizer::hash of the tokenizer that made the file; 0 where the format does not say.
  virtual uint64_t tokenizer_hash() const { return 0; }
  // ReadableFile::CheckUnchanged of what the tokens are read from.
  virtual absl::Status CheckUnchanged() const { return absl::OkStatus(); }
  // Copies tokens begin to begin + count - 1, which must exist. They are what the file holds, also
  // where that is no token of the vocabulary.
  virtual void Read(int64_t begin, int64_t count, int32_t* out) const = 0;
};

// The same, and OutOfRange, naming file and offset, for a token outside 0 to vocabulary - 1, and
// DataLoss for a file that was changed since it was opened.
absl::Status ReadChecked(const TokenSource& source, int64_t begin, int64_t count,
                         int64_t vocabulary, int32_t* out);

}  // namespace fathom
