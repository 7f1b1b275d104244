#include "kernels/grouped_matmul.h"

#include "kernels/cost.h"

namespace fathom {
namespace {

int64_t Total(const std::vector<int64_t>& rows) {
  int64_t total = 0;
  for (int64_t of_group : rows) total += of_group;
  return total;
}

double RowBytes(const Tensor& x, int64_t rows) { return 1.0 * rows * x.dim(1) * SizeOf(x.dtype()); }

// The matrices of groups that have rows.
double MatrixBytes(const std::vector<Tensor>& matrices, const std::vector<int64_t>& rows) {
  double bytes = 0;
  for (size_t g = 0; g < rows.size(); ++g) {
    if (rows[g] > 0) bytes += matrices[g].bytes();
  }
  return bytes;
}

}  // namespace

Cost GroupedMatMul::cost() const {
  const int64_t total = Total(rows);
  return {.matrix_flops = 2.0 * total * a.dim(1) * c.dim(1),
          .bytes = RowBytes(a, total) + RowBytes(c, total) + MatrixBytes(b, rows)};
}

Cost GroupedOuterMatMul::cost() const {
  const int64_t total = Total(rows);
  return {.matrix_flops = 2.0 * total * a.dim(1) * b.dim(1),
          .bytes = RowBytes(a, total) + RowBytes(b, total) + MatrixBytes(c, rows)};
}

void GroupedLinearForward(Stream& stream, const Tensor& x, const std::vector<Tensor>& weights,
                          const std::vector<int64_t>& rows, const Tensor& y) {
  Launch(stream, GroupedMatMul{.a = x, .b = weights, .c = y, .rows = rows, .transpose_b = true});
}

void GroupedLinearBackwardInput(Stream& stream, const Tensor& dy,
                                const std::vector<Tensor>& weights,
                                const std::vector<int64_t>& rows, const Tensor& dx) {
  Launch(stream, GroupedMatMul{.a = dy, .b = weights, .c = dx, .rows = rows});
}

void GroupedLinearBackwardWeight(Stream& stream, const Tensor& dy, const Tensor& x,
                                 const std::vector<int64_t>& rows,
                                 const std::vector<Tensor>& d_weights) {
  Launch(stream, GroupedOuterMatMul{.a = dy, .b = x, .c = d_weights, .rows = rows});
}

}  // namespace fathom
