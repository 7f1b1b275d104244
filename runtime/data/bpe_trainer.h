#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>

#include "absl/status/statusor.h"
#include "runtime/data/bpe_vocabulary.h"

namespace fathom {

// Learns a byte-level vocabulary, split by GPT-2's pattern. The result is a function of the text
// alone. Memory grows with the different pieces of the text, not with the text.
class BpeTrainer {
 public:
  // Counts the pieces of one document, or of one part of it: pieces do not reach across calls.
  void Add(std::string_view text);

  // Merges, again and again, the two neighbours that are most often together (of equally frequent
  // ones those with the lower ids) until there are `vocabulary` tokens: the 256 bytes in GPT-2's
  // order, the merged ones, and <|endoftext|> as the last. InvalidArgument for fewer than 257, and
  // for a text that has too little in it for so many.
  absl::StatusOr<BpeVocabulary> Train(int64_t vocabulary) const;

 private:
  std::unordered_map<std::string, int64_t> counts_;  // of each piece
};

}  // namespace fathom
