#pragma once

#include <cstdint>

namespace fathom::cpu {

// c = alpha * op(a) op(b) + beta * c on row-major matrices, by the calling thread alone. c is
// [m, n], op(a) [m, k], op(b) [k, n]; lda, ldb and ldc are the strides of their rows as stored.
// Sizes of 0 are allowed. The bits are a function of the operands, their sizes and strides.
template <class T>
struct GemmArguments {
  bool transpose_a = false;
  bool transpose_b = false;
  int64_t m, n, k;
  T alpha = 1;
  const T* a;
  int64_t lda;
  const T* b;
  int64_t ldb;
  T beta = 0;
  T* c;
  int64_t ldc;
};
void Gemm(const GemmArguments<float>& arguments);
void Gemm(const GemmArguments<double>& arguments);

// With a not transposed and at most kGemmMaximumRows rows, row i of a float c has the same bits for
// all i and m, given row i of a (and of c) and b, if m = GemmRows(m). In other products oneDNN has
// other kernels for the last rows, or other blocks of k.
inline constexpr int64_t kGemmMaximumRows = 240;
inline constexpr int64_t kGemmRowMultiple = 24;  // GemmRows(m) is m for these
// The number of rows, at least m, that m rows are to be filled up to.
int64_t GemmRows(int64_t m);

}  // namespace fathom::cpu
