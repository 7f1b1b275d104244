#pragma once

#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

namespace fathom {

// A piece of 1 to 15 bytes, its length in the last byte. No piece is all zero.
struct PieceKey {
  static constexpr int64_t kMaxSize = 15;

  uint64_t low = 0;
  uint64_t high = 0;
  bool operator==(const PieceKey&) const = default;

  // `readable`: how many bytes may be read at `piece`, at least `size`; fastest from 16 on.
  static PieceKey Of(const char* piece, int64_t size, int64_t readable) {
    PieceKey key;
    if (readable >= 16) [[likely]] {
      std::memcpy(&key.low, piece, 8);
      std::memcpy(&key.high, piece + 8, 8);
      constexpr uint64_t kAll = ~uint64_t{0};
      const int64_t bits = size * 8;
      key.low &= bits >= 64 ? kAll : ~(kAll << bits);
      key.high &= bits <= 64 ? 0 : ~(kAll << (bits - 64));
    } else {
      char bytes[16] = {};
      std::memcpy(bytes, piece, size);
      std::memcpy(&key.low, bytes, 8);
      std::memcpy(&key.high, bytes + 8, 8);
    }
    key.high |= static_cast<uint64_t>(size) << 56;
    return key;
  }

  uint64_t Hash() const {
    const unsigned __int128 product =
        static_cast<unsigned __int128>(low ^ 0x9e3779b97f4a7c15u) * (high ^ 0xd1b54a32d192ed03u);
    return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
  }
};

// Short pieces to tokens: open addressing, at most half full. Filled once, then read by any thread.
class PieceTable {
 public:
  // For up to `count` pieces.
  explicit PieceTable(int64_t count);
  void Insert(PieceKey key, int32_t token);
  // -1 for a piece that is not there. `hash` is the key's.
  int32_t Find(PieceKey key, uint64_t hash) const {
    for (uint64_t slot = hash & mask_;; slot = (slot + 1) & mask_) {
      const Entry& entry = entries_[slot];
      if (entry.key == key) return entry.token;
      if (entry.key.high == 0) return -1;
    }
  }

 private:
  struct Entry {
    PieceKey key;
    int32_t token;
  };
  uint64_t mask_;
  std::vector<Entry> entries_;
};

// Pairs of neighbouring tokens to what they merge to; built and read as the table above.
class PairTable {
 public:
  static constexpr uint32_t kNever = std::numeric_limits<uint32_t>::max();
  struct Found {
    uint32_t rank;  // lower merges first; kNever: the pair does not merge
    int32_t result;
  };

  explicit PairTable(int64_t count);
  // False when the pair is there already.
  bool Insert(int32_t left, int32_t right, Found found);
  Found Find(int32_t left, int32_t right) const {
    const uint64_t key = Key(left, right);
    for (uint64_t slot = Slot(key);; slot = (slot + 1) & mask_) {
      const Entry& entry = entries_[slot];
      if (entry.key == key || entry.key == kEmpty) return entry.found;
    }
  }

 private:
  static constexpr uint64_t kEmpty = ~uint64_t{0};
  struct Entry {
    uint64_t key = kEmpty;
    Found found = {kNever, -1};
  };
  static uint64_t Key(int32_t left, int32_t right) {
    return static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right);
  }
  uint64_t Slot(uint64_t key) const { return (key * 0x9e3779b97f4a7c15u >> shift_) & mask_; }

  int shift_;
  uint64_t mask_;
  std::vector<Entry> entries_;
};

}  // namespace fathom
