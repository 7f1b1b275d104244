#include "kernels/cpu/gemm.h"

#include <cblas.h>
#include <dnnl.h>
#include <omp.h>

#include <algorithm>

#include "core/check.h"

namespace fathom::cpu {
namespace {

// A product over no terms: c = beta * c.
template <class T>
void ScaleOnly(const GemmArguments<T>& g) {
  for (int64_t i = 0; i < g.m; ++i) {
    T* row = g.c + i * g.ldc;
    for (int64_t j = 0; j < g.n; ++j) row[j] = g.beta == 0 ? T(0) : g.beta * row[j];
  }
}

}  // namespace

void UseCallingThreadOnly() {
  thread_local const bool once = [] {
    static const bool blas = (openblas_set_num_threads(1), true);
    omp_set_num_threads(1);
    return blas;
  }();
  (void)once;
}

void Gemm(const GemmArguments<float>& g) {
  if (g.m == 0 || g.n == 0) return;
  if (g.k == 0) return ScaleOnly(g);
  UseCallingThreadOnly();
  const dnnl_status_t status =
      dnnl_sgemm(g.transpose_a ? 'T' : 'N', g.transpose_b ? 'T' : 'N', g.m, g.n, g.k, g.alpha, g.a,
                 g.lda, g.b, g.ldb, g.beta, g.c, g.ldc);
  FATHOM_CHECK(status == dnnl_success)
      << "oneDNN refused a product of " << g.m << " x " << g.n << " x " << g.k;
}

void Gemm(const GemmArguments<double>& g) {
  if (g.m == 0 || g.n == 0) return;
  if (g.k == 0) return ScaleOnly(g);
  UseCallingThreadOnly();
  cblas_dgemm(CblasRowMajor, g.transpose_a ? CblasTrans : CblasNoTrans,
              g.transpose_b ? CblasTrans : CblasNoTrans, g.m, g.n, g.k, g.alpha, g.a, g.lda, g.b,
              g.ldb, g.beta, g.c, g.ldc);
}

template <class T>
int64_t GemmRule<T>::Rows(int64_t m) {
  // Kernels for AVX-512 differ below 16 rows only. Those for AVX2 take 6 rows at a time and have
  // several forms for what remains of a block of rows; which multiples of 6 leave nothing was
  // measured, up to kMaximumRows.
  static const bool avx512 =
      (dnnl_get_effective_cpu_isa() & dnnl_cpu_isa_avx512_core) == dnnl_cpu_isa_avx512_core;
  if (avx512) return std::max<int64_t>(m, 16);
  const int64_t multiple = m <= 72 ? 6 : 12;
  return (m + multiple - 1) / multiple * multiple;
}
template struct GemmRule<float>;
template struct GemmRule<double>;

}  // namespace fathom::cpu
