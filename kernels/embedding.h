#pragma once

#include <string_view>

#include "kernels/launch.h"

namespace fathom {

// x_i = table[tokens_i].
struct Embedding {
  static constexpr std::string_view kName = "embedding";
  Tensor tokens;  // [n] int32, 0 to V - 1
  Tensor table;   // [V, d] T
  Tensor x;       // [n, d] T
  Cost cost() const;
};
void RunOnCpu(const Embedding& operation, CpuStream& stream);

// d_table[tokens_i] += dx_i, rows in ascending i, so that the sum has one order.
struct EmbeddingBackward {
  static constexpr std::string_view kName = "embedding_backward";
  Tensor tokens;   // [n] int32
  Tensor dx;       // [n, d] T
  Tensor d_table;  // [V, d] stat, +=
  Cost cost() const;
};
void RunOnCpu(const EmbeddingBackward& operation, CpuStream& stream);

}  // namespace fathom
