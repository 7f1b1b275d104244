#pragma once

#include <string_view>
#include <vector>

#include "kernels/launch.h"

namespace fathom {

// Products of G groups of consecutive rows, each with a matrix of its own: group g has rows[g] rows
// behind those of the groups before it. Rows behind the last group's are neither read nor written.
// A group without rows costs almost nothing; its matrix is neither read nor written and may be
// absent. The bits of a row are those that MatMul gives it.

// c_g = a_g op(b_g), with op the identity or the transpose.
struct GroupedMatMul {
  static constexpr std::string_view kName = "grouped_matmul";
  Tensor a;                   // [M, k] T
  std::vector<Tensor> b;      // one per group: [k, n] T, or [n, k] when transpose_b
  Tensor c;                   // [M, n] T or stat
  std::vector<int64_t> rows;  // one per group, together at most M
  bool transpose_b = false;
  Cost cost() const;
};
void RunOnCpu(const GroupedMatMul& operation, CpuStream& stream);

// c_g += a_g^T b_g.
struct GroupedOuterMatMul {
  static constexpr std::string_view kName = "grouped_outer_matmul";
  Tensor a;                   // [M, m] T
  Tensor b;                   // [M, n] T
  std::vector<Tensor> c;      // one per group: [m, n] stat, +=
  std::vector<int64_t> rows;  // one per group, together at most M
  Cost cost() const;
};
void RunOnCpu(const GroupedOuterMatMul& operation, CpuStream& stream);

// The three products of linear layers with weights w_g [out, in], one per group.

// y_g = x_g w_g^T: x [M, in], y [M, out].
void GroupedLinearForward(Stream& stream, const Tensor& x, const std::vector<Tensor>& weights,
                          const std::vector<int64_t>& rows, const Tensor& y);
// dx_g = dy_g w_g.
void GroupedLinearBackwardInput(Stream& stream, const Tensor& dy,
                                const std::vector<Tensor>& weights,
                                const std::vector<int64_t>& rows, const Tensor& dx);
// dw_g += dy_g^T x_g, dw_g stat.
void GroupedLinearBackwardWeight(Stream& stream, const Tensor& dy, const Tensor& x,
                                 const std::vector<int64_t>& rows,
                                 const std::vector<Tensor>& d_weights);

}  // namespace fathom
