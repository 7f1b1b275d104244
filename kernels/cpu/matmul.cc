#include "kernels/matmul.h"

#include "kernels/cpu/matmul_tiles.h"

namespace fathom {
namespace {

using cpu::GemmArguments;
using cpu::Tiles;

template <class T, class C>
void RunMatMul(const MatMul& op, CpuStream& stream) {
  const bool batched = op.c.rank() == 3;
  const auto stride = [&](const Tensor& x) { return batched ? x.dim(2) : x.row_stride(); };
  using S = cpu::Stat<T>;
  GemmArguments<T, C> g{.transpose_a = op.transpose_a,
                        .transpose_b = op.transpose_b,
                        .m = op.m(),
                        .n = op.n(),
                        .k = op.k(),
                        .alpha = static_cast<S>(op.alpha),
                        .a = op.a.data<T>(),
                        .lda = stride(op.a),
                        .b = op.b.data<T>(),
                        .ldb = stride(op.b),
                        .beta = static_cast<S>(op.beta),
                        .c = op.c.data<C>(),
                        .ldc = stride(op.c)};
  FATHOM_CHECK_EQ(g.k, op.b.dim(op.b.rank() - (op.transpose_b ? 1 : 2))) << "inner sizes";
  FATHOM_CHECK_EQ(g.n, op.b.dim(op.b.rank() - (op.transpose_b ? 2 : 1))) << "columns";
  FATHOM_CHECK_EQ(g.m, op.a.dim(op.a.rank() - (op.transpose_a ? 1 : 2))) << "rows";
  const double work = cpu::kWorkOfAMultiplyAdd * g.m * g.n * g.k;
  if (batched) {
    FATHOM_CHECK(op.count.absent()) << "a batch of products has no count";
    cpu::ParallelTasks(stream, op.batch(), work, [&](int64_t i, int thread) {
      GemmArguments<T, C> one = g;
      one.a += i * op.a.row_stride();
      one.b += i * op.b.row_stride();
      one.c += i * op.c.row_stride();
      const Tiles tiles = cpu::TilesFor<cpu::GemmRule<T>>(1, g.transpose_a, g.m, g.n);
      for (int64_t j = 0; j < tiles.row_tiles; ++j) {
        cpu::TileGemm(cpu::Tile(one, tiles, j), stream, thread);
      }
    });
    return;
  }
  (op.transpose_a ? g.k : g.m) = cpu::RowsInUse(op.count, op.transpose_a ? g.k : g.m);
  const Tiles tiles = cpu::TilesFor<cpu::GemmRule<T>>(stream.threads(), op.transpose_a, g.m, g.n);
  cpu::ParallelTasks(stream, tiles.count(), work / tiles.count(), [&](int64_t tile, int thread) {
    cpu::TileGemm(cpu::Tile(g, tiles, tile), stream, thread);
  });
}

}  // namespace

void RunOnCpu(const MatMul& operation, CpuStream& stream) {
  cpu::Dispatch(operation.a.dtype(), [&](auto type) {
    using T = decltype(type);
    if (operation.c.dtype() == DTypeOf<T>) {
      RunMatMul<T, T>(operation, stream);
    } else {
      RunMatMul<T, cpu::Stat<T>>(operation, stream);
    }
  });
}

}  // namespace fathom
