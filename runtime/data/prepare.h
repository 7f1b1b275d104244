#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/file.h"
#include "runtime/data/bpe_vocabulary.h"
#include "runtime/data/tokenizer.h"

namespace fathom {

struct PrepareStats {
  int64_t text_bytes = 0;    // of text, decompressed, that became tokens
  int64_t stored_bytes = 0;  // read, as they are stored
  int64_t stored_total = 0;  // of all inputs; 0: not known, for standard input
  int64_t tokens = 0;
  int64_t documents = 0;
  uint64_t checksum = 0;  // XXH3 of the stored tokens; the same for the same text and tokenizer
  double seconds = 0;
};

enum class TokenFormat {
  kFathom,    // one file of the name that is given
  kMegatron,  // NAME.bin and NAME.idx
};

struct PrepareOptions {
  TokenFormat format = TokenFormat::kFathom;
  // Threads that encode; the output is the same for any number.
  int threads = 1;
  // Takes every input as JSON lines; otherwise those that are named so (IsNamedAsJsonLines).
  bool json_lines = false;
  // Of JSON lines: a string, which is encoded, or an array of token ids, which are taken as they
  // are.
  std::string field = "text";
  // Only the bytes begin_byte to end_byte - 1 of each decompressed input are used.
  int64_t begin_byte = 0;
  int64_t end_byte = std::numeric_limits<int64_t>::max();
  // Called after each piece of about 1 MiB, one call at a time; `checksum` is not yet set.
  std::function<void(const PrepareStats&)> progress;
};

// Writes the token file `output` (its final name, e.g. "PREFIX.tokens"; for Megatron the name
// before ".bin") from `inputs`, each of them a path or "-" for standard input, plain or compressed
// by gzip or zstd. Each text and each JSON line that is not blank is one document, also an empty
// one, closed by one end-of-document token. Streams: memory grows with the threads and the number
// of documents (8 bytes each), but not with the text, unless a tokenizer finds no place to cut it.
// On an error nothing is left under `output`, and an older file there stays. InvalidArgument for
// inputs without documents, and naming file and line for JSON lines that cannot be used.
absl::StatusOr<PrepareStats> PrepareTokens(FileSystem& files,
                                           const std::vector<std::string>& inputs,
                                           const Tokenizer& tokenizer, const std::string& output,
                                           const PrepareOptions& options);

// Learns a byte-level BPE vocabulary of `vocabulary` tokens from the same inputs, read as
// PrepareTokens does; of `options`, `json_lines` and `field` are used. InvalidArgument for an array
// of ids, which is no text.
absl::StatusOr<BpeVocabulary> TrainVocabulary(FileSystem& files,
                                              const std::vector<std::string>& inputs,
                                              int64_t vocabulary, const PrepareOptions& options);

}  // namespace fathom
