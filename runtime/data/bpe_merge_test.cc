#include "runtime/data/bpe_merge.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <string>

namespace fathom {
namespace {

using Ids = std::vector<int32_t>;

// A vocabulary of bytes and random merges of earlier tokens of few letters. With odd seeds the
// ranks are in no order, so that a merge can make a pair of lower rank.
struct RandomMerges {
  explicit RandomMerges(uint32_t seed) {
    std::mt19937 random(seed);
    for (int i = 0; i < 256; ++i) tokens.push_back(std::string(1, static_cast<char>(i)));
    std::vector<int32_t> usable = {'a', 'b', 'c'};
    while (merges.size() < 60) {
      const int32_t left = usable[random() % usable.size()];
      const int32_t right = usable[random() % usable.size()];
      if (merges.count({left, right}) > 0) continue;
      const int32_t result = tokens.size();
      merges[{left, right}] = {static_cast<uint32_t>(merges.size()), result};
      tokens.push_back(tokens[left] + tokens[right]);
      if (tokens.back().size() <= 12) usable.push_back(result);
    }
    std::vector<uint32_t> ranks(merges.size());
    std::iota(ranks.begin(), ranks.end(), 0);
    if (seed % 2 == 1) std::shuffle(ranks.begin(), ranks.end(), random);
    for (auto& [pair, found] : merges) found.rank = ranks[found.rank];
  }

  BpeMerger Merger() const {
    PairTable pairs(merges.size());
    for (const auto& [pair, found] : merges) pairs.Insert(pair.first, pair.second, found);
    std::array<int32_t, 256> bytes;
    for (int i = 0; i < 256; ++i) bytes[i] = i;
    Ids sizes;
    for (const std::string& token : tokens) sizes.push_back(token.size());
    return BpeMerger(std::move(pairs), bytes, sizes);
  }

  // The definition: look for the lowest rank, merge its leftmost place, start again.
  Ids Reference(const std::string& text, uint32_t rank_limit) const {
    Ids ids(text.begin(), text.end());
    while (true) {
      uint32_t best = rank_limit;
      size_t place = 0;
      int32_t result = 0;
      for (size_t i = 0; i + 1 < ids.size(); ++i) {
        const auto found = merges.find({ids[i], ids[i + 1]});
        if (found == merges.end() || found->second.rank >= best) continue;
        best = found->second.rank;
        result = found->second.result;
        place = i;
      }
      if (best == rank_limit) return ids;
      ids[place] = result;
      ids.erase(ids.begin() + place + 1);
    }
  }

  std::vector<std::string> tokens;
  std::map<std::pair<int32_t, int32_t>, PairTable::Found> merges;
};

TEST(BpeMergerTest, ShortAndLongPiecesAreMergedByTheDefinition) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    const RandomMerges vocabulary(seed);
    const BpeMerger merger = vocabulary.Merger();
    std::mt19937 random(seed + 100);
    for (const int size : {1, 2, 3, 7, 20, 127, 128, 129, 130, 200, 500}) {
      std::string text(size, 'a');
      for (char& c : text) c = "aaabbc"[random() % 6];
      for (const uint32_t limit : {PairTable::kNever, 30u, 0u}) {
        Ids found = {-7};
        merger.Merge(text, &found, limit);
        Ids wanted = vocabulary.Reference(text, limit);
        wanted.insert(wanted.begin(), -7);  // appended
        ASSERT_EQ(found, wanted) << "seed " << seed << " size " << size << " limit " << limit;
      }
    }
  }
}

TEST(BpeMergerTest, RunsOfOneLetter) {
  const RandomMerges vocabulary(3);
  const BpeMerger merger = vocabulary.Merger();
  for (int size = 1; size < 300; ++size) {
    Ids found;
    merger.Merge(std::string(size, 'a'), &found);
    ASSERT_EQ(found, vocabulary.Reference(std::string(size, 'a'), PairTable::kNever)) << size;
  }
}

TEST(PairTableTest, RefusesAPairTwice) {
  PairTable pairs(2);
  EXPECT_TRUE(pairs.Insert(1, 2, {0, 3}));
  EXPECT_FALSE(pairs.Insert(1, 2, {1, 4}));
  EXPECT_EQ(pairs.Find(1, 2).result, 3);
  EXPECT_EQ(pairs.Find(2, 1).rank, PairTable::kNever);
}

TEST(PieceKeyTest, TheSameWhateverMayBeReadBehindThePiece) {
  const std::string text = "0123456789abcdefghijklmnopqrstuvwxyz";
  for (int64_t size = 1; size <= PieceKey::kMaxSize; ++size) {
    const PieceKey alone = PieceKey::Of(text.data(), size, size);
    EXPECT_EQ(alone, PieceKey::Of(text.data(), size, text.size()));
    EXPECT_NE(alone, PieceKey::Of(text.data() + 1, size, text.size()));
  }
  const char zeros[16] = {};  // the length tells these apart
  EXPECT_NE(PieceKey::Of(zeros, 1, 16), PieceKey::Of(zeros, 2, 16));
}

}  // namespace
}  // namespace fathom
