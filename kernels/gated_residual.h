#pragma once

#include <string_view>

#include "core/routing.h"
#include "kernels/launch.h"

namespace fathom {

// The end of a layer: the residual rows that it saw take their new values. With x the gathered row,
// a and f the outputs of attention and FFN, r = sigmoid(z) and g the learned scale of the layer:
//   NONE:  (x + a) + f
//   MOD:   (x + a) + r * f
//   XMOD:  x + (g * r) * (a + f)
// Row i goes to row index_i of y; other rows of y stay as they are.
struct GatedResidual {
  static constexpr std::string_view kName = "gated_residual";
  Gate gate = Gate::kNone;
  Tensor x;      // [m, d] T
  Tensor a;      // [m, d] T, or absent when x already holds x + a (NONE and MOD only)
  Tensor f;      // [m, d] T
  Tensor z;      // [N] stat, adjusted router logits, read at index_i; MOD and XMOD
  Tensor scale;  // [1] stat, g; XMOD
  Tensor index;  // [m] int32 or absent
  Tensor y;      // [N, d] T
  Tensor count;
  Cost cost() const;
};
void RunOnCpu(const GatedResidual& operation, CpuStream& stream);

// d_f: the gradient of f. dz_i = d(loss)/dz of the selected token i, through r (0 for NONE).
// The gradient of a and of x through this operation alone:
//   NONE, MOD:  both are the gathered rows of dy       -> d_x; d_a is not written and may be absent
//   XMOD:       d_x the gathered rows of dy; d_a = d_f (the same values) -> d_a may be absent
struct GatedResidualBackward {
  static constexpr std::string_view kName = "gated_residual_backward";
  Gate gate = Gate::kNone;
  Tensor dy;       // [N, d] T
  Tensor index;    // [m] int32 or absent
  Tensor a;        // [m, d] T; XMOD
  Tensor f;        // [m, d] T; MOD and XMOD
  Tensor z;        // [N] stat; MOD and XMOD
  Tensor scale;    // [1] stat; XMOD
  Tensor d_x;      // [m, d] T: gathered rows of dy
  Tensor d_f;      // [m, d] T: NONE dy, MOD r * dy, XMOD g * r * dy
  Tensor dz;       // [m] stat; MOD and XMOD
  Tensor d_scale;  // [1] stat, +=; XMOD
  Tensor count;
  Cost cost() const;
};
void RunOnCpu(const GatedResidualBackward& operation, CpuStream& stream);

}  // namespace fathom
