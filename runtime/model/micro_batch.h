#pragma once

#include <cstdint>
#include <vector>

#include "core/arena.h"

namespace fathom {

// B sequences of L tokens, on the host.
struct HostBatch {
  int64_t sequences = 0;           // B
  int64_t length = 0;              // L
  std::vector<int32_t> tokens;     // [B * L]
  std::vector<int32_t> labels;     // [B * L]: the token that follows; negative where not counted
  std::vector<int32_t> positions;  // [B * L]: position within the sequence or document
  std::vector<int32_t> segments;   // [S + 1]: first rows of sequences and documents, then B * L

  // Tokens and labels all 0, positions and segments those of B whole sequences.
  static HostBatch WholeSequences(int64_t sequences, int64_t length);
};

// The same on the device.
struct MicroBatch {
  int64_t sequences = 0;
  int64_t length = 0;
  double pairs = 0;  // query-key pairs of causal attention over the segments
  Tensor tokens;     // [n] int32
  Tensor labels;     // [n] int32
  Tensor positions;  // [n] int32
  Tensor segments;   // [S + 1] int32

  int64_t rows() const { return sequences * length; }
};

// Copies to tensors in `arena`. `host` must stay as it is until the stream is synchronized.
MicroBatch Upload(const HostBatch& host, Stream& stream, Arena& arena);

}  // namespace fathom
