#include "runtime/data/bpe_trainer.h"

#include <algorithm>
#include <queue>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/status.h"
#include "runtime/data/pretokenizer.h"

namespace fathom {
namespace {

using Kind = BpeVocabulary::Kind;

// Longer pieces are cut here, so that a merge never takes long to redo one piece.
constexpr int64_t kLongestPiece = 256;

uint64_t PairOf(int32_t left, int32_t right) {
  return static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right);
}

struct Word {
  std::vector<int32_t> ids;
  int64_t count;
};

struct PairUse {
  int64_t count = 0;
  std::vector<int32_t> words;  // where it is or was; a word may be there twice
};

struct Candidate {
  int64_t count;
  uint64_t pair;
  // Orders a queue: the highest count first, then the lowest ids.
  bool operator<(const Candidate& other) const {
    return count != other.count ? count < other.count : pair > other.pair;
  }
};

// The text as words of tokens, and how often each pair of neighbours is in it. The queue may hold
// outdated counts; Best drops them.
class PairCounts {
 public:
  explicit PairCounts(std::vector<Word> words) : words_(std::move(words)) {
    for (size_t w = 0; w < words_.size(); ++w) {
      const std::vector<int32_t>& ids = words_[w].ids;
      for (size_t i = 0; i + 1 < ids.size(); ++i) {
        PairUse& use = uses_[PairOf(ids[i], ids[i + 1])];
        use.count += words_[w].count;
        if (use.words.empty() || use.words.back() != w) use.words.push_back(w);
      }
    }
    for (const auto& [pair, use] : uses_) queue_.push({use.count, pair});
  }

  // False when no pairs are left.
  bool Best(int32_t* left, int32_t* right) {
    while (!queue_.empty()) {
      const Candidate best = queue_.top();
      const auto use = uses_.find(best.pair);
      if (use != uses_.end() && use->second.count == best.count) {
        *left = best.pair >> 32;
        *right = best.pair & 0xffffffffu;
        return true;
      }
      queue_.pop();
    }
    return false;
  }

  void Merge(int32_t left, int32_t right, int32_t result) {
    const auto merged = uses_.find(PairOf(left, right));
    const std::vector<int32_t> words = std::move(merged->second.words);
    changed_.clear();
    for (const int32_t w : words) MergeWord(w, left, right, result);
    std::sort(changed_.begin(), changed_.end());
    changed_.erase(std::unique(changed_.begin(), changed_.end()), changed_.end());
    for (const uint64_t pair : changed_) {
      const auto use = uses_.find(pair);
      if (use->second.count > 0) {
        queue_.push({use->second.count, pair});
      } else {
        uses_.erase(use);
      }
    }
  }

 private:
  void Change(int32_t left, int32_t right, int64_t by, int32_t w) {
    const uint64_t pair = PairOf(left, right);
    PairUse& use = uses_[pair];
    use.count += by;
    if (by > 0 && (use.words.empty() || use.words.back() != w)) use.words.push_back(w);
    changed_.push_back(pair);
  }

  // Takes the pairs that the merge changes out of the counts and puts those that come of it in.
  void MergeWord(int32_t w, int32_t left, int32_t right, int32_t result) {
    Word& word = words_[w];
    merged_.clear();
    taken_.assign(word.ids.size() + 1, false);
    for (size_t i = 0; i < word.ids.size(); ++i) {
      const bool pair = i + 1 < word.ids.size() && word.ids[i] == left && word.ids[i + 1] == right;
      merged_.push_back(pair ? result : word.ids[i]);
      if (!pair) continue;
      taken_[i] = taken_[i + 1] = true;
      ++i;
    }
    if (merged_.size() == word.ids.size()) return;  // an earlier merge took the pair away
    for (size_t i = 0; i + 1 < word.ids.size(); ++i) {
      if (taken_[i] || taken_[i + 1]) Change(word.ids[i], word.ids[i + 1], -word.count, w);
    }
    for (size_t i = 0; i + 1 < merged_.size(); ++i) {
      if (merged_[i] == result || merged_[i + 1] == result) {
        Change(merged_[i], merged_[i + 1], word.count, w);
      }
    }
    word.ids = merged_;
  }

  std::vector<Word> words_;
  std::unordered_map<uint64_t, PairUse> uses_;
  std::priority_queue<Candidate> queue_;
  std::vector<uint64_t> changed_;
  std::vector<int32_t> merged_;
  std::vector<bool> taken_;
};

}  // namespace

void BpeTrainer::Add(std::string_view text) {
  const char* at = text.data();
  const char* const end = at + text.size();
  while (at < end) {
    const char* const piece = at;
    at = EndOfPiece(SplitPattern::kGpt2, piece, end);
    for (const char* part = piece; part < at; part += kLongestPiece) {
      ++counts_[std::string(part, std::min<int64_t>(kLongestPiece, at - part))];
    }
  }
}

absl::StatusOr<BpeVocabulary> BpeTrainer::Train(int64_t vocabulary) const {
  if (vocabulary < 257 || vocabulary > kMaxBpeTokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("a vocabulary of ", vocabulary,
                     " tokens cannot be trained; 257 (the bytes and the end of "
                     "a document) to ",
                     kMaxBpeTokens, " can"));
  }
  BpeVocabulary result;
  std::vector<int32_t> byte_tokens(256);
  for (const uint8_t byte : ByteAlphabet::Get().order()) {
    byte_tokens[byte] = result.tokens.size();
    result.tokens.push_back(std::string(1, static_cast<char>(byte)));
  }
  std::vector<Word> words;
  for (const auto& [piece, count] : counts_) {
    words.push_back({{}, count});
    for (const char c : piece) words.back().ids.push_back(byte_tokens[static_cast<uint8_t>(c)]);
  }
  PairCounts pairs(std::move(words));
  while (result.tokens.size() + 1 < vocabulary) {
    int32_t left, right;
    if (!pairs.Best(&left, &right)) {
      return absl::InvalidArgumentError(
          absl::StrCat("the text has pairs for a vocabulary of ", result.tokens.size() + 1,
                       " tokens, and ", vocabulary, " were asked for; give it more text"));
    }
    const int32_t merged = result.tokens.size();
    result.tokens.push_back(result.tokens[left] + result.tokens[right]);
    result.merges.push_back({left, right, merged});
    pairs.Merge(left, right, merged);
  }
  result.kinds.assign(result.tokens.size(), Kind::kText);
  result.end_of_document = result.tokens.size();
  result.tokens.push_back(std::string(kEndOfDocumentNames[0]));
  result.kinds.push_back(Kind::kSpecial);
  return result;
}

}  // namespace fathom
