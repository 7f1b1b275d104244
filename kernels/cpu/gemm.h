#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/cpu/dispatch.h"

namespace fathom::cpu {

// c = alpha * op(a) op(b) + beta * c on row-major matrices, by the calling thread alone. c is
// [m, n], op(a) [m, k], op(b) [k, n]; lda, ldb and ldc are the strides of their rows as stored.
// Sizes of 0 are allowed. The bits are a function of the operands, their sizes and strides.
template <class T, class C = T>
struct GemmArguments {
  bool transpose_a = false;
  bool transpose_b = false;
  int64_t m, n, k;
  Stat<T> alpha = 1;
  const T* a;
  int64_t lda;
  const T* b;
  int64_t ldb;
  Stat<T> beta = 0;
  C* c;
  int64_t ldc;
};
void Gemm(const GemmArguments<float>& arguments);
void Gemm(const GemmArguments<double>& arguments);
// Sums are in float. Where the processor has no products of bfloat16 the operands are widened,
// block by block, which is slower than products of floats.
void Gemm(const GemmArguments<BFloat16, float>& arguments);
void Gemm(const GemmArguments<BFloat16, BFloat16>& arguments);

// With a not transposed and at most kMaximumRows rows, row i of a float or bfloat16 c has the same
// bits for all i and m, given row i of a (and of c) and b, if m = Rows(m). In other products
// oneDNN has other kernels for the last rows, or other blocks of k.
template <class T>
struct GemmRule {
  static constexpr int64_t kMaximumRows = 240;
  static constexpr int64_t kRowMultiple = 24;  // Rows(m) is m for these
  // The number of rows, at least m, that m rows are to be filled up to.
  static int64_t Rows(int64_t m);
};
template <>
struct GemmRule<BFloat16> {
  // oneDNN chooses kernels and blocks of k by the number of rows: they are always as many.
  static constexpr int64_t kMaximumRows = 128;
  static constexpr int64_t kRowMultiple = kMaximumRows;
  static int64_t Rows(int64_t m);
};

// The libraries' own threads stay out of it: our workers call them, each for a tile of its own.
void UseCallingThreadOnly();

}  // namespace fathom::cpu
