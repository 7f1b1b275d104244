#pragma once

#include <string_view>

#include "kernels/launch.h"

namespace fathom {

// y = silu(gate) * up, silu(x) = x * sigmoid(x), where a row holds [gate, up] (Shazeer, "GLU
// variants improve transformer", 2020, eq. 6).
struct SwiGlu {
  static constexpr std::string_view kName = "swiglu";
  Tensor gate_up;  // [m, 2F] T
  Tensor y;        // [m, F] T
  Tensor count;
  Cost cost() const;
};
void RunOnCpu(const SwiGlu& operation, CpuStream& stream);

// d_gate_up from dy; y once more, for the gradient of the next product, so that it need not be
// kept.
struct SwiGluBackward {
  static constexpr std::string_view kName = "swiglu_backward";
  Tensor gate_up;    // [m, 2F] T
  Tensor dy;         // [m, F] T
  Tensor d_gate_up;  // [m, 2F] T
  Tensor y;          // [m, F] T
  Tensor count;
  Cost cost() const;
};
void RunOnCpu(const SwiGluBackward& operation, CpuStream& stream);

}  // namespace fathom
