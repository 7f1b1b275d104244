#pragma once

#include <string_view>

#include "kernels/launch.h"

namespace fathom {

// Per-head RMSNorm, then rotary position embedding (Su et al., "RoFormer", 2021, section 3.4.2) in
// the half-split layout: with u = x * rstd * weight of one head of a row at position p,
//   y[j]         = u[j] * cosine[p, j] - u[j + h/2] * sine[p, j]
//   y[j + h/2]   = u[j + h/2] * cosine[p, j] + u[j] * sine[p, j],   j < h/2.
struct HeadNormRotary {
  static constexpr std::string_view kName = "head_norm_rotary";
  Tensor x;       // [m, heads * h] T, any row stride
  Tensor weight;  // [h] stat
  double eps = 1e-6;
  Tensor positions;  // [m] int32, rows of the tables
  Tensor cosine;     // [P, h/2] stat
  Tensor sine;       // [P, h/2] stat
  Tensor y;          // [m, heads * h] T, any row stride; may be x itself
  Tensor rstd;       // [m, heads] stat
  Tensor count;
  Cost cost() const;
};
void RunOnCpu(const HeadNormRotary& operation, CpuStream& stream);

// From dy to dx (through rotation and norm), and dweight += .
struct HeadNormRotaryBackward {
  static constexpr std::string_view kName = "head_norm_rotary_backward";
  Tensor x;          // [m, heads * h] T, as forward read it
  Tensor weight;     // [h] stat
  Tensor positions;  // [m] int32
  Tensor cosine;     // [P, h/2] stat
  Tensor sine;       // [P, h/2] stat
  Tensor rstd;       // [m, heads] stat
  Tensor dy;         // [m, heads * h] T
  Tensor dx;         // [m, heads * h] T; may be dy itself
  Tensor dweight;    // [h] stat, +=
  Tensor count;
  Cost cost() const;
};
void RunOnCpu(const HeadNormRotaryBackward& operation, CpuStream& stream);

// cosine[p, j] = cos(p * theta^(-2j/h)), sine likewise: the phase in double, rounded once.
struct RotaryTables {
  static constexpr std::string_view kName = "rotary_tables";
  double theta = 1e6;
  Tensor cosine;  // [P, h/2] float32 or float64
  Tensor sine;    // [P, h/2]
  Cost cost() const;
};
void RunOnCpu(const RotaryTables& operation, CpuStream& stream);

}  // namespace fathom
