#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/top_k.h"
#include "kernels/router.h"

// Which rows a sparse layer sees.
namespace fathom {

void RunOnCpu(const SelectTopK& operation, CpuStream& stream) {
  const SelectTopK& op = operation;
  const int64_t n = op.z.dim(1);
  FATHOM_CHECK(op.k >= 1 && op.k <= n) << "the top " << op.k << " of " << n;
  FATHOM_CHECK_EQ(op.index.elements(), op.z.dim(0) * op.k);
  cpu::DispatchStatistics(op.z.dtype(), [&](auto type) {
    using S = decltype(type);
    using Key = cpu::OrderKey<S>;
    const cpu::RowsOf<S> z(op.z);
    int32_t* index = op.index.data<int32_t>();
    cpu::ParallelTasks(stream, op.z.dim(0), 8 * n, [&](int64_t sequence, int thread) {
      Key* keys = static_cast<Key*>(stream.Scratch(thread, n * sizeof(Key)));
      const S* row = z[sequence];
      cpu::TopK<S>(
          n, op.k, [&](int64_t i) { return row[i]; }, keys, sequence * n, index + sequence * op.k);
    });
  });
}

void RunOnCpu(const SelectThreshold& operation, CpuStream&) {
  const SelectThreshold& op = operation;
  cpu::DispatchStatistics(op.value.dtype(), [&](auto type) {
    using S = decltype(type);
    const S* value = op.value.data<S>();
    int32_t* index = op.index.data<int32_t>();
    int32_t selected = 0;
    for (int64_t i = 0; i < op.value.elements(); ++i) {
      if (value[i] >= 0) index[selected++] = i;
    }
    *op.count.data<int32_t>() = selected;
  });
}

}  // namespace fathom
