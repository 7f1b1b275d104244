#include "runtime/data/bpe_tables.h"

#include <algorithm>
#include <bit>

namespace fathom {
namespace {

uint64_t Slots(int64_t count) { return std::bit_ceil<uint64_t>(std::max<int64_t>(count, 1) * 2); }

}  // namespace

PieceTable::PieceTable(int64_t count) : mask_(Slots(count) - 1), entries_(mask_ + 1) {}

void PieceTable::Insert(PieceKey key, int32_t token) {
  uint64_t slot = key.Hash() & mask_;
  while (entries_[slot].key.high != 0 && entries_[slot].key != key) slot = (slot + 1) & mask_;
  entries_[slot] = {key, token};
}

PairTable::PairTable(int64_t count)
    : shift_(64 - std::countr_zero(Slots(count))), mask_(Slots(count) - 1), entries_(mask_ + 1) {}

bool PairTable::Insert(int32_t left, int32_t right, Found found) {
  const uint64_t key = Key(left, right);
  uint64_t slot = Slot(key);
  while (entries_[slot].key != kEmpty) {
    if (entries_[slot].key == key) return false;
    slot = (slot + 1) & mask_;
  }
  entries_[slot] = {key, found};
  return true;
}

}  // namespace fathom
