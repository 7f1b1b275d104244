#pragma once

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/vector_math.h"

namespace fathom::cpu {

// sum_j term(j), j < n, in double; term returns double. Blocks of fixed size are added in order, so
// that the bits do not depend on the number of threads. Uses scratch.
template <class Term>
double BlockedSum(CpuStream& stream, int64_t n, const Term& term) {
  constexpr int64_t kBlock = 8192;
  const int64_t blocks = (n + kBlock - 1) / kBlock;
  double* partials = static_cast<double*>(stream.Scratch(0, blocks * sizeof(double)));
  ParallelFor(stream, blocks, kBlock, [&](int64_t begin, int64_t end, int) {
    for (int64_t block = begin; block < end; ++block) {
      const int64_t first = block * kBlock;
      partials[block] =
          LaneSum<double>(std::min(kBlock, n - first), [&](int64_t j) { return term(first + j); });
    }
  });
  double sum = 0;
  for (int64_t block = 0; block < blocks; ++block) sum += partials[block];
  return sum;
}

}  // namespace fathom::cpu
