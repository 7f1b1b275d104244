#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "runtime/data/bpe_tables.h"

namespace fathom {

// Merges one piece of text: of all neighbours that the table has, those with the lowest rank
// first, the leftmost of equal ones. Thread-safe.
class BpeMerger {
 public:
  // `token_sizes`: the bytes of every token, by id. `pairs` are of tokens whose bytes, one after
  // the other, are those of the result; ranks are below 2^24.
  BpeMerger(PairTable pairs, const std::array<int32_t, 256>& byte_tokens,
            std::vector<int32_t> token_sizes);

  // Appends the tokens of `piece`. Pairs of rank `rank_limit` and above do not merge. Takes
  // n log n time for n bytes.
  void Merge(std::string_view piece, std::vector<int32_t>* tokens,
             uint32_t rank_limit = PairTable::kNever) const;

 private:
  static constexpr int64_t kShort = 128;  // bytes that plain scans are faster for
  void MergeShort(std::string_view piece, std::vector<int32_t>* tokens, uint32_t rank_limit) const;
  void MergeLong(std::string_view piece, std::vector<int32_t>* tokens, uint32_t rank_limit) const;

  PairTable pairs_;
  std::array<int32_t, 256> byte_tokens_;
  std::vector<int32_t> token_sizes_;
};

}  // namespace fathom
