#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/file.h"
#include "runtime/data/tokenizer.h"

namespace fathom {

struct PrepareStats {
  int64_t text_bytes = 0;    // of text, decompressed, that became tokens
  int64_t stored_bytes = 0;  // read, as they are stored
  int64_t tokens = 0;
  int64_t documents = 0;
  uint64_t checksum = 0;  // XXH3 of the stored tokens; the same for the same text and tokenizer
  double seconds = 0;
};

struct PrepareOptions {
  // Only the bytes begin_byte to end_byte - 1 of each decompressed input are used.
  int64_t begin_byte = 0;
  int64_t end_byte = std::numeric_limits<int64_t>::max();
  // Called after each piece of about 1 MiB; `checksum` is not yet set.
  std::function<void(const PrepareStats&)> progress;
};

// Writes the token file `output` (its final name, e.g. "PREFIX.tokens") from `inputs`, each of them
// plain text, gzip, or "-" for standard input. Each input is one document, also an empty one,
// closed by one end-of-document token. Streams: memory does not grow with the text.
// On an error nothing is left under `output`, and an older file there stays.
absl::StatusOr<PrepareStats> PrepareTokens(FileSystem& files,
                                           const std::vector<std::string>& inputs,
                                           const Tokenizer& tokenizer, const std::string& output,
                                           const PrepareOptions& options);

}  // namespace fathom
