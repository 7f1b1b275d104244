#pragma once

#include <string_view>

#include "kernels/launch.h"

namespace fathom {

// RMSNorm of gathered rows plus an addend, fused (Zhang and Sennrich, "Root mean square layer
// normalization", 2019, eq. 4):
//   s_i = x[index_i] + addend_i;  rstd_i = 1 / sqrt(mean(s_i^2) + eps);  y_i = s_i * rstd_i *
//   weight
struct RmsNorm {
  static constexpr std::string_view kName = "rms_norm";
  Tensor x;       // [N, d] T
  Tensor index;   // [m] int32, or absent with m = N
  Tensor addend;  // [m, d] T, or absent for 0
  Tensor weight;  // [d] stat
  double eps = 1e-6;
  Tensor sum;   // [m, d] T: s, or absent when it is not wanted
  Tensor y;     // [m, d] T
  Tensor rstd;  // [m] stat
  Tensor count;
  Cost cost() const;
};
void RunOnCpu(const RmsNorm& operation, CpuStream& stream);

// With v = d(loss)/ds through the norm,
//   v_i = rstd_i * (weight*dy_i - s_i * rstd_i^2 * mean(weight * dy_i * s_i)):
//   dx = base + v, dx2 = base2 + v, dweight += sum_i dy_i * s_i * rstd_i.
// s = x + addend, computed as forward did, so that a forward pass may keep x and the addend, or s.
struct RmsNormBackward {
  static constexpr std::string_view kName = "rms_norm_backward";
  Tensor x;         // [m, d] T: s when there is no addend
  Tensor addend;    // [m, d] T or absent
  Tensor weight;    // [d] stat
  Tensor rstd;      // [m] stat
  Tensor dy;        // [m, d] T
  Tensor base;      // [m, d] T, or absent for 0; may be dx itself
  Tensor dx;        // row i is row index_i, see dx_index
  Tensor dx_index;  // [m] int32: v_i goes to row dx_index_i of dx; absent: dx is [m, d]. `base` is
                    // not indexed.
  Tensor base2;     // likewise; may be dx2 itself
  Tensor dx2;       // [m, d] T or absent
  Tensor dweight;   // [d] stat, +=
  Tensor count;
  Cost cost() const;
};
void RunOnCpu(const RmsNormBackward& operation, CpuStream& stream);

}  // namespace fathom
