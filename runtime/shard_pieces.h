#pragma once

#include <cstdint>
#include <vector>

#include "runtime/checkpoint/shard_writer.h"
#include "runtime/gather.h"

namespace fathom {

// Adds what a rank gives of its tensors in the form that WriteShards takes, without the data.
inline void AppendShardPieces(TensorKind kind, const std::vector<TensorPiece>& tensors,
                              std::vector<ShardPiece>* pieces) {
  for (const TensorPiece& piece : tensors) {
    pieces->push_back({.name = piece.name,
                       .kind = kind,
                       .dtype = piece.data.dtype(),
                       .whole = piece.whole,
                       .slice = {piece.part, piece.range}});
  }
}

// Where a piece stands in a copy of all of them in host memory, which a save in the background
// writes from: at multiples of this.
inline constexpr int64_t kSnapshotAlignment = 64;

inline int64_t SnapshotBytes(const ShardPiece& piece) {
  return (piece.bytes() + kSnapshotAlignment - 1) / kSnapshotAlignment * kSnapshotAlignment;
}

}  // namespace fathom
