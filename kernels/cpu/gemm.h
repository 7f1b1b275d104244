#pragma once

#include <cstdint>

namespace fathom::cpu {

// c = alpha * op(a) op(b) + beta * c on row-major matrices, by the calling thread alone. c is
// [m, n], op(a) [m, k], op(b) [k, n]; lda, ldb and ldc are the strides of their rows as stored.
// Sizes of 0 are allowed. For given shapes and strides row i of c depends only on row i of op(a)
// and c and on b; within kGemmMinimumRows to kGemmMaximumRows its bits do not depend on m.
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

// The libraries choose other kernels below and other blocks of k above.
inline constexpr int64_t kGemmMinimumRows = 16;
inline constexpr int64_t kGemmMaximumRows = 256;

// While it lives, the libraries use the calling thread only.
class SingleThreaded {
 public:
  SingleThreaded();
  ~SingleThreaded();
  SingleThreaded(const SingleThreaded&) = delete;
  SingleThreaded& operator=(const SingleThreaded&) = delete;

 private:
  int before_;
};

}  // namespace fathom::cpu
