#pragma once

#include <string_view>

#include "kernels/launch.h"

namespace fathom {

// Causal grouped-query attention over packed rows. Rows segments[s] to segments[s + 1] - 1 form
// segment s (a document, or the selected tokens of one); within it row i sees rows j <= i of the
// same segment. Query head q reads key/value head q / (H / G).
//   o_i = sum_j p_ij v_j,  p_ij = exp(scale * q_i.k_j - lse_i),  lse_i = log sum_j exp(scale
//   q_i.k_j)
// Operands in bfloat16 are widened first: scores, softmax and all products are in float, that of p
// and v too.
// In blocks with a running maximum (Dao, "FlashAttention-2", 2023, section 3.1): never L x L.
struct Attention {
  static constexpr std::string_view kName = "attention";
  Tensor q;         // [m, H * h] T, any row stride
  Tensor k;         // [m, G * h] T, any row stride
  Tensor v;         // [m, G * h] T, any row stride
  Tensor segments;  // [S + 1] int32, ascending from 0; segments may be empty
  int64_t heads = 0;
  int64_t kv_heads = 0;
  double scale = 1;
  double pairs =
      0;       // the number of (i, j) pairs of all segments, for the cost: the host's knowledge
  Tensor o;    // [m, H * h] T
  Tensor lse;  // [m, H] stat
  Cost cost() const;
};
void RunOnCpu(const Attention& operation, CpuStream& stream);

struct AttentionBackward {
  static constexpr std::string_view kName = "attention_backward";
  Tensor q, k, v;   // as in Attention
  Tensor segments;  // [S + 1] int32
  int64_t heads = 0;
  int64_t kv_heads = 0;
  double scale = 1;
  double pairs = 0;
  Tensor o;           // [m, H * h] T, forward's result
  Tensor lse;         // [m, H] stat
  Tensor d_o;         // [m, H * h] T
  Tensor dq, dk, dv;  // as q, k, v, any row stride
  Cost cost() const;
};
void RunOnCpu(const AttentionBackward& operation, CpuStream& stream);

}  // namespace fathom
