#pragma once

#include <string_view>

#include "kernels/launch.h"

namespace fathom {

// c = alpha * op(a) op(b) + beta * c, with op the identity or the transpose. 2-D operands, or 3-D
// ones for a batch of equal products.
struct MatMul {
  static constexpr std::string_view kName = "matmul";
  Tensor a;  // [m, k] T, or [k, m] when transpose_a; any row stride
  Tensor b;  // [k, n] T, or [n, k] when transpose_b
  Tensor c;  // [m, n] T or stat; when beta is 0 the old contents are not read
  bool transpose_a = false;
  bool transpose_b = false;
  double alpha = 1;
  double beta = 0;
  // Rows in use of a and c; with transpose_a the rows (k) in use of a and b. 2-D operands only.
  Tensor count;

  int64_t batch() const { return c.rank() == 3 ? c.dim(0) : 1; }
  int64_t m() const { return c.dim(c.rank() - 2); }
  int64_t n() const { return c.dim(c.rank() - 1); }
  int64_t k() const { return transpose_a ? a.dim(a.rank() - 2) : a.dim(a.rank() - 1); }
  Cost cost() const;
};
void RunOnCpu(const MatMul& operation, CpuStream& stream);

// The three products of a linear layer with weight w [out, in].

// y = x w^T: x [n, in], y [n, out].
void LinearForward(Stream& stream, const Tensor& x, const Tensor& w, const Tensor& y,
                   const Tensor& count = {});
// dx = dy w.
void LinearBackwardInput(Stream& stream, const Tensor& dy, const Tensor& w, const Tensor& dx,
                         const Tensor& count = {});
// dw += dy^T x, dw stat.
void LinearBackwardWeight(Stream& stream, const Tensor& dy, const Tensor& x, const Tensor& dw,
                          const Tensor& count = {});

}  // namespace fathom
