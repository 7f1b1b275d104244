#include "runtime/data/bpe_tokenizer.h"

#include <algorithm>
#include <atomic>

#include "absl/strings/str_cat.h"
#include "core/status.h"
#include "runtime/checksum.h"
#include "runtime/data/pretokenizer.h"

namespace fathom {
namespace {

using Kind = BpeVocabulary::Kind;

// What a thread remembers of the pieces that are several tokens: one slot per hash, the newest
// piece wins. One cache line each.
struct alignas(64) CachedPiece {
  static constexpr int kMaxTokens = 10;
  PieceKey key;
  uint32_t tokenizer = 0;  // its number
  int32_t count = 0;
  int32_t tokens[kMaxTokens];
};
constexpr int kCacheBits = 16;

CachedPiece* ThreadCache() {
  static thread_local std::unique_ptr<CachedPiece[]> cache(new CachedPiece[1 << kCacheBits]);
  return cache.get();
}

// Calls use(left, right) for each way to cut `token` into two tokens.
template <class Use>
void ForEachCut(const std::string& token, const std::unordered_map<std::string_view, int32_t>& ids,
                const Use& use) {
  for (size_t size = 1; size < token.size(); ++size) {
    const std::string_view bytes = token;
    const auto left = ids.find(bytes.substr(0, size));
    if (left == ids.end()) continue;
    const auto right = ids.find(bytes.substr(size));
    if (right != ids.end()) use(left->second, right->second);
  }
}

absl::StatusOr<PairTable> MakePairs(const BpeVocabulary& vocabulary, const std::string& path) {
  if (!vocabulary.merges_by_bytes) {
    PairTable pairs(vocabulary.merges.size());
    uint32_t rank = 0;
    for (const auto [left, right, result] : vocabulary.merges) {
      if (!pairs.Insert(left, right, {rank++, result})) {
        return absl::InvalidArgumentError(
            absl::StrCat(path, ": merge ", rank, " is of the same two tokens as an earlier one, ",
                         left, " and ", right));
      }
    }
    return pairs;
  }
  std::unordered_map<std::string_view, int32_t> ids;
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    if (vocabulary.kinds[id] == Kind::kText) ids[vocabulary.tokens[id]] = id;
  }
  struct Pair {
    int32_t left, right, result;
  };
  std::vector<Pair> found;
  for (const auto& [bytes, id] : ids) {
    ForEachCut(std::string(bytes), ids, [&found, id = id](int32_t left, int32_t right) {
      found.push_back({left, right, id});
    });
  }
  PairTable pairs(found.size());
  for (const auto [left, right, result] : found) {
    pairs.Insert(left, right, {static_cast<uint32_t>(result), result});
  }
  return pairs;
}

uint32_t NextNumber() {
  static std::atomic<uint32_t> number{0};
  return ++number;
}

}  // namespace

absl::StatusOr<std::unique_ptr<BpeTokenizer>> BpeTokenizer::Create(BpeVocabulary vocabulary,
                                                                   const std::string& path) {
  if (vocabulary.tokens.size() > kMaxBpeTokens || vocabulary.merges.size() > kMaxBpeTokens) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", vocabulary.tokens.size(),
                                                   " tokens are more than the ", kMaxBpeTokens,
                                                   " that a vocabulary may have"));
  }
  FATHOM_ASSIGN_OR_RETURN(const auto byte_tokens, ByteTokens(vocabulary, path));
  FATHOM_ASSIGN_OR_RETURN(PairTable pairs, MakePairs(vocabulary, path));
  std::vector<int32_t> sizes;
  for (const std::string& token : vocabulary.tokens) sizes.push_back(token.size());
  BpeMerger merger(std::move(pairs), byte_tokens, std::move(sizes));
  std::unique_ptr<BpeTokenizer> tokenizer(
      new BpeTokenizer(std::move(vocabulary), std::move(merger)));
  tokenizer->FillPieces();
  tokenizer->hash_ = tokenizer->ComputeHash();
  return tokenizer;
}

BpeTokenizer::BpeTokenizer(BpeVocabulary vocabulary, BpeMerger merger)
    : vocabulary_(std::move(vocabulary)),
      merger_(std::move(merger)),
      number_(NextNumber()),
      short_pieces_(vocabulary_.tokens.size()) {}

void BpeTokenizer::FillPieces() {
  std::vector<int32_t> merged;
  for (size_t id = 0; id < vocabulary_.tokens.size(); ++id) {
    if (vocabulary_.kinds[id] != Kind::kText) continue;
    const std::string& token = vocabulary_.tokens[id];
    longest_token_ = std::max<int64_t>(longest_token_, token.size());
    if (!vocabulary_.whole_pieces) {
      merged.clear();
      merger_.Merge(token, &merged);
      if (merged.size() != 1 || merged[0] != id) continue;
    }
    if (token.size() <= PieceKey::kMaxSize) {
      short_pieces_.Insert(PieceKey::Of(token.data(), token.size(), token.size()), id);
    } else {
      long_pieces_[token] = id;
    }
  }
}

uint64_t BpeTokenizer::ComputeHash() const {
  std::string all;
  const auto add = [&all](int64_t value) {
    all.append(reinterpret_cast<const char*>(&value), sizeof(value));
  };
  add(static_cast<int64_t>(vocabulary_.pattern));
  add(vocabulary_.add_prefix_space);
  add(vocabulary_.end_of_document);
  for (size_t id = 0; id < vocabulary_.tokens.size(); ++id) {
    add(static_cast<int64_t>(vocabulary_.kinds[id]));
    if (vocabulary_.kinds[id] != Kind::kText) continue;  // a special token's name shapes nothing
    add(vocabulary_.tokens[id].size());
    all += vocabulary_.tokens[id];
  }
  for (const auto [left, right, result] : vocabulary_.merges) {
    add(left);
    add(right);
  }
  // A vocabulary without a list of merges has the one that leads to its tokens, in their order.
  std::vector<int32_t> parts;
  for (size_t id = 0; vocabulary_.merges_by_bytes && id < vocabulary_.tokens.size(); ++id) {
    if (vocabulary_.kinds[id] != Kind::kText || vocabulary_.tokens[id].size() == 1) continue;
    parts.clear();
    merger_.Merge(vocabulary_.tokens[id], &parts, id);
    for (const int32_t part : parts) add(part);
  }
  // Pieces that are taken whole although merging does not lead to them.
  std::vector<int32_t> merged;
  for (size_t id = 0; vocabulary_.whole_pieces && id < vocabulary_.tokens.size(); ++id) {
    if (vocabulary_.kinds[id] != Kind::kText) continue;
    merged.clear();
    merger_.Merge(vocabulary_.tokens[id], &merged);
    if (merged.size() != 1) add(id);
  }
  return Checksum(all);
}

void BpeTokenizer::Encode(std::string_view text, std::vector<int32_t>* tokens) const {
  if (vocabulary_.add_prefix_space && !text.empty() && text[0] != ' ') {
    EncodeText(absl::StrCat(" ", absl::string_view(text.data(), text.size())), tokens);
  } else {
    EncodeText(text, tokens);
  }
}

void BpeTokenizer::EncodeText(std::string_view text, std::vector<int32_t>* tokens) const {
  CachedPiece* const cache = ThreadCache();
  const char* at = text.data();
  const char* const end = at + text.size();
  while (at < end) {
    const char* const piece = at;
    at = EndOfPiece(vocabulary_.pattern, piece, end);
    const int64_t size = at - piece;
    if (size > PieceKey::kMaxSize) [[unlikely]] {
      EncodeLongPiece({piece, static_cast<size_t>(size)}, tokens);
      continue;
    }
    const PieceKey key = PieceKey::Of(piece, size, end - piece);
    const uint64_t hash = key.Hash();
    const int32_t token = short_pieces_.Find(key, hash);
    if (token >= 0) [[likely]] {
      tokens->push_back(token);
      continue;
    }
    CachedPiece& cached = cache[hash >> (64 - kCacheBits)];
    if (cached.key == key && cached.tokenizer == number_) {
      tokens->insert(tokens->end(), cached.tokens, cached.tokens + cached.count);
      continue;
    }
    const size_t before = tokens->size();
    merger_.Merge({piece, static_cast<size_t>(size)}, tokens);
    const int64_t count = tokens->size() - before;
    if (count > CachedPiece::kMaxTokens) continue;
    cached.key = key;
    cached.tokenizer = number_;
    cached.count = count;
    std::copy(tokens->begin() + before, tokens->end(), cached.tokens);
  }
}

void BpeTokenizer::EncodeLongPiece(std::string_view piece, std::vector<int32_t>* tokens) const {
  if (piece.size() <= longest_token_) {
    const auto whole = long_pieces_.find(piece);
    if (whole != long_pieces_.end()) {
      tokens->push_back(whole->second);
      return;
    }
  }
  merger_.Merge(piece, tokens);
}

int64_t BpeTokenizer::LastCut(std::string_view text) const {
  // Where the second part starts with a space, it gets no prefix space of its own.
  return LastSafeCut(vocabulary_.pattern, text, vocabulary_.add_prefix_space);
}

absl::StatusOr<std::string> BpeTokenizer::Decode(const std::vector<int32_t>& tokens) const {
  std::string text;
  for (const int32_t token : tokens) {
    if (token < 0 || token >= vocabulary() || vocabulary_.kinds[token] == Kind::kUnused) {
      return absl::OutOfRangeError(absl::StrCat(
          "token ", token, " is none of the tokenizer's vocabulary of ", vocabulary()));
    }
    if (vocabulary_.kinds[token] == Kind::kText) text += vocabulary_.tokens[token];
  }
  return text;
}

}  // namespace fathom
