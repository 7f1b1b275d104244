#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "core/file.h"

namespace fathom {

// Text to tokens and back. Thread-safe.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  // "bytes" or "bpe".
  virtual std::string name() const = 0;
  // Differs between tokenizers that give different tokens; token files carry it.
  virtual uint64_t hash() const = 0;
  virtual int64_t vocabulary() const = 0;
  virtual int32_t end_of_document() const = 0;
  // Appends the tokens of `text`. The text of a special token is ordinary text, so the
  // end-of-document token never comes out of it.
  virtual void Encode(std::string_view text, std::vector<int32_t>* tokens) const = 0;
  // The largest offset in `text` at which it may be encoded in two parts, whatever follows it: the
  // tokens of the parts, one after the other, are those of the whole. 0: there is no such place.
  virtual int64_t LastCut(std::string_view text) const = 0;
  // The bytes of the tokens; special tokens have none. OutOfRange for what is no token.
  virtual absl::StatusOr<std::string> Decode(const std::vector<int32_t>& tokens) const = 0;
};

// A tokenizer by its name:
//   "bytes"            one token per byte and 256 for the end of a document, so the vocabulary is
//   257 a directory        with GPT-2's vocab.bpe and encoder.json, or with tokenizer.json a file
//   Hugging Face's tokenizer.json of a byte-level BPE, or tiktoken's
// Any bytes survive the round trip. InvalidArgument, in one sentence, for a name that is none of
// these and for files that cannot be used.
absl::StatusOr<std::unique_ptr<Tokenizer>> MakeTokenizer(std::string_view name,
                                                         FileSystem& files = PosixFileSystem());

}  // namespace fathom
