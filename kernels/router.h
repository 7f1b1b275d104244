#pragma once

#include <string_view>

#include "core/routing.h"
#include "kernels/launch.h"

namespace fathom {

// Token routing of a sparse layer. "z" is compared, never sigmoid(z), which has false ties.

// s_i = x_i . w, each a sum over d in a fixed order that does not depend on anything else.
struct RouterLogits {
  static constexpr std::string_view kName = "router_logits";
  Tensor x;  // [N, d] T
  Tensor w;  // [d] stat
  Tensor s;  // [N] stat
  Cost cost() const;
};
void RunOnCpu(const RouterLogits& operation, CpuStream& stream);

// z_i = s_i - tau * counts_i.
struct AdjustLogits {
  static constexpr std::string_view kName = "adjust_logits";
  Tensor s;       // [N] stat
  Tensor counts;  // [N] stat: how much token i was selected since the last reset
  double tau = 1;
  Tensor z;  // [N] stat
  Cost cost() const;
};
void RunOnCpu(const AdjustLogits& operation, CpuStream& stream);

// Of each of B sequences of L rows, the k rows with the largest z; ties go to the lower row. A NaN
// ranks above everything (so that it is noticed), -0 equals 0.
struct SelectTopK {
  static constexpr std::string_view kName = "select_top_k";
  Tensor z;       // [B, L] stat
  int64_t k = 0;  // 1 to L
  Tensor index;   // [B * k] int32: rows of [B * L], ascending
  Cost cost() const;
};
void RunOnCpu(const SelectTopK& operation, CpuStream& stream);

// All rows whose value is >= 0, ascending.
struct SelectThreshold {
  static constexpr std::string_view kName = "select_threshold";
  Tensor value;  // [N] stat: z, or s with Alignment::kRaw
  Tensor index;  // [N] int32: the first `count` elements are written
  Tensor count;  // [1] int32, written
  Cost cost() const;
};
void RunOnCpu(const SelectThreshold& operation, CpuStream& stream);

// For the selected rows: counts[index_i] += increment, positions_i = row_positions[index_i], and
// where the borders of sequences and documents fall among them:
// segments_j = the number of selected rows below borders_j.
struct DescribeSelection {
  static constexpr std::string_view kName = "describe_selection";
  Tensor index;  // [m] int32
  Tensor count;  // [1] int32 or absent
  double increment = 1;
  Tensor counts;         // [N] stat, +=
  Tensor row_positions;  // [N] int32
  Tensor positions;      // [m] int32
  Tensor borders;        // [S + 1] int32, ascending from 0 to N
  Tensor segments;       // [S + 1] int32
  Cost cost() const;
};
void RunOnCpu(const DescribeSelection& operation, CpuStream& stream);

// The auxiliary loss of one layer: binary cross-entropy between the selection t (1 for rows in
// `index`, else 0) and sigmoid(u), in the form that cannot overflow: max(u,0) - u*t +
// log(1+e^-|u|).
struct RouterLoss {
  static constexpr std::string_view kName = "router_loss";
  Tensor u;           // [N] stat: z, or s with Alignment::kRaw
  Tensor index;       // [m] int32
  Tensor count;       // [1] int32 or absent
  double weight = 0;  // of a token: coefficient / tokens of the global batch
  Tensor loss;        // [1] float64, += weight * sum
  Cost cost() const;
};
void RunOnCpu(const RouterLoss& operation, CpuStream& stream);

// ds_i = weight * (sigmoid(u_i) - t_i) + (dz of row i if it was selected): the gradient of the
// router's logit, from the auxiliary loss and through the gate.
struct RouterLogitGradient {
  static constexpr std::string_view kName = "router_logit_gradient";
  Tensor u;      // [N] stat
  Tensor index;  // [m] int32
  Tensor dz;     // [m] stat, or absent for 0
  double weight = 0;
  Tensor ds;  // [N] stat
  Cost cost() const;
};
void RunOnCpu(const RouterLogitGradient& operation, CpuStream& stream);

// dx_i += ds_i * w, dw += sum_i ds_i * x_i.
struct RouterBackward {
  static constexpr std::string_view kName = "router_backward";
  Tensor ds;  // [N] stat
  Tensor x;   // [N, d] T
  Tensor w;   // [d] stat
  Tensor dx;  // [N, d] T, +=
  Tensor dw;  // [d] stat, +=
  Cost cost() const;
};
void RunOnCpu(const RouterBackward& operation, CpuStream& stream);

}  // namespace fathom
