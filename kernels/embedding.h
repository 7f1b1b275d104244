#pragma once

#include <string_view>

#include "kernels/launch.h"

namespace fathom {

// Tables hold the whole vocabulary or a window of it: the V tokens from first_token on.

// x_i = the row of tokens_i in `table`; 0 where the table does not hold that token, so that windows
// that share out the vocabulary give parts of the embedding that add up to it.
struct Embedding {
  static constexpr std::string_view kName = "embedding";
  Tensor tokens;  // [n] int32, not negative
  Tensor table;   // [V, d] T
  int64_t first_token = 0;
  Tensor x;  // [n, d] T
  Cost cost() const;
};
void RunOnCpu(const Embedding& operation, CpuStream& stream);

// The row of tokens_i in `d_table` += dx_i, in ascending i, so that the sum has one order. Where
// the table does not hold that token, dx_i is not used.
struct EmbeddingBackward {
  static constexpr std::string_view kName = "embedding_backward";
  Tensor tokens;   // [n] int32, not negative
  Tensor dx;       // [n, d] T
  Tensor d_table;  // [V, d] stat, +=
  int64_t first_token = 0;
  Cost cost() const;
};
void RunOnCpu(const EmbeddingBackward& operation, CpuStream& stream);

}  // namespace fathom
