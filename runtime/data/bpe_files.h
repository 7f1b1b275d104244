#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "core/file.h"
#include "runtime/data/bpe_vocabulary.h"

namespace fathom {

// The files that byte-pair vocabularies come in. All of these are InvalidArgument, naming the file
// and what is wrong in it, for a file that is not what it should be, and NotFound for a missing
// one. Ids must be 0 to n - 1, each once; one token must have a name of kEndOfDocumentNames.

// Whatever `path` is: a directory with vocab.bpe and encoder.json, or else with tokenizer.json; or
// a file, tokenizer.json or tiktoken's, told apart by their first character.
absl::StatusOr<BpeVocabulary> ReadBpeVocabulary(FileSystem& files, const std::string& path);

// GPT-2's vocab.bpe and encoder.json. Tokens that are neither a byte nor merged are special.
absl::StatusOr<BpeVocabulary> ReadGpt2Files(FileSystem& files, const std::string& directory);

// Hugging Face's tokenizer.json of a byte-level BPE: no normalizer; split by ByteLevel, or by a
// pattern of SplitPattern and then ByteLevel. Added tokens, special or not, never come out of text.
absl::StatusOr<BpeVocabulary> ReadTokenizerJson(FileSystem& files, const std::string& path);

// tiktoken's lines of a base64 token and its rank, which is its id. The file does not say how text
// is split and which token ends a document; its number of tokens says it for the known ones:
//   100256 cl100k (end 100257), 128000 Llama 3 (end 128001), 151643 Qwen (end 151643);
// any other gets GPT-2's pattern, and the id after the last, or the only one left out, as the end.
absl::StatusOr<BpeVocabulary> ReadTiktoken(FileSystem& files, const std::string& path);

// Writes vocab.bpe and encoder.json, as ReadGpt2Files reads them. The vocabulary must have its
// merges as a list, GPT-2's pattern, and no ids unused.
absl::Status WriteGpt2Files(FileSystem& files, const std::string& directory,
                            const BpeVocabulary& vocabulary);

}  // namespace fathom
