#include "kernels/embedding.h"

#include <algorithm>

#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/parallel.h"

namespace fathom {
namespace {

void CheckTokens(const Tensor& tokens) {
  const int32_t* token = tokens.data<int32_t>();
  for (int64_t i = 0; i < tokens.elements(); ++i) {
    FATHOM_CHECK(token[i] >= 0) << "token " << token[i];
  }
}

}  // namespace

void RunOnCpu(const Embedding& operation, CpuStream& stream) {
  const Embedding& op = operation;
  CheckTokens(op.tokens);
  cpu::Dispatch(op.x.dtype(), [&](auto type) {
    using T = decltype(type);
    const cpu::RowsOf<T> table(op.table), x(op.x);
    const int32_t* tokens = op.tokens.data<int32_t>();
    const int64_t d = op.x.dim(1);
    cpu::ParallelFor(stream, op.x.dim(0), d, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t row = cpu::PlaceInWindow(tokens[i], op.first_token, op.table.dim(0));
        if (row < 0) {
          std::fill_n(x[i], d, static_cast<T>(0));
        } else {
          std::copy_n(table[row], d, x[i]);
        }
      }
    });
  });
}

void RunOnCpu(const EmbeddingBackward& operation, CpuStream& stream) {
  const EmbeddingBackward& op = operation;
  CheckTokens(op.tokens);
  cpu::Dispatch(op.dx.dtype(), [&](auto type) {
    using T = decltype(type);
    using S = cpu::Stat<T>;
    const cpu::RowsOf<T> dx(op.dx);
    const cpu::RowsOf<S> d_table(op.d_table);
    const int32_t* tokens = op.tokens.data<int32_t>();
    const int64_t n = op.dx.dim(0);
    // Each worker has columns of its own, a cache line at least, and takes all rows in order.
    constexpr int64_t kColumns = 16;
    const int64_t d = op.dx.dim(1);
    const int64_t slices = (d + kColumns - 1) / kColumns;
    cpu::ParallelFor(stream, slices, n * kColumns, [&](int64_t begin, int64_t end, int) {
      const int64_t last = std::min(d, end * kColumns);
      for (int64_t i = 0; i < n; ++i) {
        const int64_t row = cpu::PlaceInWindow(tokens[i], op.first_token, op.d_table.dim(0));
        if (row < 0) continue;
        S* sum = d_table[row];
        const T* addend = dx[i];
        for (int64_t j = begin * kColumns; j < last; ++j) {
          sum[j] += static_cast<S>(addend[j]);
        }
      }
    });
  });
}

}  // namespace fathom
