#include "runtime/data/bpe_merge.h"

#include <algorithm>
#include <bit>
#include <functional>

namespace fathom {
namespace {

// A queue that gives the least key. Keys hardly ever are below one that it gave before, since a
// merge makes pairs of higher rank; so it is a radix heap (Ahuja, Mehlhorn, Orlin, Tarjan, "Faster
// algorithms for the shortest path problem", 1990), which reads memory in order where a binary heap
// of millions of keys would miss the cache at every level. The few keys that are below wait aside.
class PairQueue {
 public:
  void Push(uint64_t key) {
    if (key < last_) [[unlikely]] {
      below_.push_back(key);
      std::push_heap(below_.begin(), below_.end(), std::greater<>());
    } else {
      buckets_[std::bit_width(key ^ last_)].push_back(key);
    }
  }

  // False when it is empty.
  bool Pop(uint64_t* key) {
    std::vector<uint64_t>* from = &below_;
    if (!below_.empty()) {
      std::pop_heap(below_.begin(), below_.end(), std::greater<>());
    } else {
      from = &buckets_[0];
      if (from->empty() && !Refill()) return false;
    }
    *key = from->back();
    from->pop_back();
    return true;
  }

 private:
  // Moves the keys of the first bucket that has any to those before it; the least end in bucket 0.
  bool Refill() {
    int first = 0;
    while (first <= 64 && buckets_[first].empty()) ++first;
    if (first > 64) return false;
    const std::vector<uint64_t> keys = std::move(buckets_[first]);
    buckets_[first].clear();
    last_ = *std::min_element(keys.begin(), keys.end());
    for (const uint64_t key : keys) buckets_[std::bit_width(key ^ last_)].push_back(key);
    return true;
  }

  uint64_t last_ = 0;
  std::vector<uint64_t> buckets_[65];  // bucket b: the highest bit that differs from last_ is b - 1
  std::vector<uint64_t> below_;        // a heap
};

}  // namespace

BpeMerger::BpeMerger(PairTable pairs, const std::array<int32_t, 256>& byte_tokens,
                     std::vector<int32_t> token_sizes)
    : pairs_(std::move(pairs)), byte_tokens_(byte_tokens), token_sizes_(std::move(token_sizes)) {}

void BpeMerger::Merge(std::string_view piece, std::vector<int32_t>* tokens,
                      uint32_t rank_limit) const {
  if (piece.size() <= kShort) {
    MergeShort(piece, tokens, rank_limit);
  } else {
    MergeLong(piece, tokens, rank_limit);
  }
}

void BpeMerger::MergeShort(std::string_view piece, std::vector<int32_t>* tokens,
                           uint32_t rank_limit) const {
  int32_t ids[kShort];
  // Rank and result, in this order, of the pair that starts here; kNoPair for the last token.
  uint64_t pairs[kShort];
  constexpr uint64_t kNoPair = ~uint64_t{0};
  int64_t count = piece.size();
  const auto look_up = [&](int64_t i) {
    if (i + 1 == count) {
      pairs[i] = kNoPair;
      return;
    }
    const PairTable::Found found = pairs_.Find(ids[i], ids[i + 1]);
    pairs[i] = static_cast<uint64_t>(found.rank) << 32 | static_cast<uint32_t>(found.result);
  };
  for (int64_t i = 0; i < count; ++i) ids[i] = byte_tokens_[static_cast<uint8_t>(piece[i])];
  for (int64_t i = 0; i < count; ++i) look_up(i);
  while (count > 1) {
    int64_t best = 0;
    for (int64_t i = 1; i < count; ++i) best = pairs[i] < pairs[best] ? i : best;
    if (pairs[best] >> 32 >= rank_limit) break;
    ids[best] = static_cast<int32_t>(pairs[best]);
    --count;
    for (int64_t i = best + 1; i < count; ++i) {
      ids[i] = ids[i + 1];
      pairs[i] = pairs[i + 1];
    }
    look_up(best);
    if (best > 0) look_up(best - 1);
  }
  tokens->insert(tokens->end(), ids, ids + count);
}

// The token that covers bytes a to b stands at a and, with kLast set, at b (without it when a = b);
// so both neighbours of a token are found by its place and size alone. Bytes in between are stale.
void BpeMerger::MergeLong(std::string_view piece, std::vector<int32_t>* tokens,
                          uint32_t rank_limit) const {
  constexpr uint32_t kLast = 1u << 31;
  constexpr int kPlaceBits = 40;
  const int64_t size = piece.size();
  std::vector<uint32_t> ids(size);
  for (int64_t i = 0; i < size; ++i) ids[i] = byte_tokens_[static_cast<uint8_t>(piece[i])];

  const auto find = [&](int64_t place) {
    const int64_t right = place + token_sizes_[ids[place]];
    if (right >= size) return PairTable::Found{PairTable::kNever, -1};
    return pairs_.Find(ids[place], ids[right]);
  };
  PairQueue queue;  // of rank and place of a pair's left token
  const auto push = [&](int64_t place) {
    const uint64_t rank = find(place).rank;
    if (rank < rank_limit) queue.Push(rank << kPlaceBits | static_cast<uint64_t>(place));
  };
  for (int64_t i = 0; i + 1 < size; ++i) push(i);

  for (uint64_t key; queue.Pop(&key);) {
    const int64_t place = key & ((uint64_t{1} << kPlaceBits) - 1);
    const uint32_t rank = key >> kPlaceBits;
    if (ids[place] & kLast) continue;  // no token starts here any more
    const PairTable::Found found = find(place);
    if (found.rank != rank) continue;  // another pair by now
    ids[place + token_sizes_[ids[place]]] = kLast;
    ids[place] = found.result;
    ids[place + token_sizes_[found.result] - 1] = found.result | kLast;
    push(place);
    if (place > 0) {
      const uint32_t previous = ids[place - 1] & ~kLast;
      push(place - token_sizes_[previous]);
    }
  }
  for (int64_t place = 0; place < size; place += token_sizes_[ids[place]]) {
    tokens->push_back(ids[place]);
  }
}

}  // namespace fathom
