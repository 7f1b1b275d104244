#include "kernels/matmul.h"

#include <algorithm>

#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/parallel.h"

// A product is cut into tiles of c, each computed by one thread. How many columns a tile has
// depends on the operands' other sizes but never on the number of rows, and its rows stay within
// Gemm's limits, so that a row's bits depend on nothing but itself and b.
namespace fathom {
namespace {

using cpu::GemmArguments;

int64_t DivideUp(int64_t a, int64_t b) { return (a + b - 1) / b; }

struct Tiles {
  int64_t row_tiles;
  int64_t column_tiles;
};

Tiles TilesFor(const CpuStream& stream, bool transpose_a, int64_t m, int64_t n) {
  constexpr int64_t kColumns = 256;  // narrower tiles repeat too much of a's packing
  const int64_t threads = stream.threads();
  const int64_t column_tiles = std::clamp<int64_t>(n / kColumns, 1, threads);
  if (transpose_a) {
    const int64_t row_tiles = std::clamp<int64_t>(m / 64, 1, DivideUp(threads, column_tiles));
    return {row_tiles, column_tiles};
  }
  int64_t row_tiles = DivideUp(m, cpu::kGemmMaximumRows);
  // A narrow product divides its rows instead.
  const int64_t wanted = DivideUp(threads, column_tiles);
  row_tiles = std::max(row_tiles, std::min(wanted, m / (2 * cpu::kGemmMinimumRows)));
  return {std::max<int64_t>(1, row_tiles), column_tiles};
}

// Fewer rows than Gemm's minimum: rows of zeros are added in scratch, under the same strides.
template <class T>
void GemmOfFewRows(GemmArguments<T> g, CpuStream& stream, int thread) {
  const int64_t rows = cpu::kGemmMinimumRows;
  T* a = static_cast<T*>(stream.Scratch(thread, rows * (g.lda + g.ldc) * sizeof(T)));
  T* c = a + rows * g.lda;
  for (int64_t i = 0; i < rows; ++i) {
    if (i < g.m) {
      std::copy_n(g.a + i * g.lda, g.k, a + i * g.lda);
      if (g.beta != 0) std::copy_n(g.c + i * g.ldc, g.n, c + i * g.ldc);
    } else {
      std::fill_n(a + i * g.lda, g.k, T(0));
      if (g.beta != 0) std::fill_n(c + i * g.ldc, g.n, T(0));
    }
  }
  GemmArguments<T> padded = g;
  padded.m = rows;
  padded.a = a;
  padded.c = c;
  cpu::Gemm(padded);
  for (int64_t i = 0; i < g.m; ++i) std::copy_n(c + i * g.ldc, g.n, g.c + i * g.ldc);
}

template <class T>
void TileGemm(const GemmArguments<T>& g, CpuStream& stream, int thread) {
  if (g.m == 0 || g.n == 0) return;
  if (!g.transpose_a && g.m < cpu::kGemmMinimumRows && g.k > 0) {
    GemmOfFewRows(g, stream, thread);
  } else {
    cpu::Gemm(g);
  }
}

template <class T>
GemmArguments<T> Tile(const GemmArguments<T>& g, const Tiles& tiles, int64_t task) {
  const int64_t row = task / tiles.column_tiles;
  const int64_t column = task % tiles.column_tiles;
  const int64_t i = g.m * row / tiles.row_tiles;
  // Columns come in whole cache lines.
  const int64_t width = DivideUp(DivideUp(g.n, tiles.column_tiles), 16) * 16;
  const int64_t j = std::min(g.n, width * column);
  GemmArguments<T> tile = g;
  tile.m = g.m * (row + 1) / tiles.row_tiles - i;
  tile.n = std::min(g.n, width * (column + 1)) - j;
  tile.a += g.transpose_a ? i : i * g.lda;
  tile.b += g.transpose_b ? j * g.ldb : j;
  tile.c += i * g.ldc + j;
  return tile;
}

template <class T>
void RunMatMul(const MatMul& op, CpuStream& stream) {
  const bool batched = op.c.rank() == 3;
  const auto stride = [&](const Tensor& x) { return batched ? x.dim(2) : x.row_stride(); };
  GemmArguments<T> g{.transpose_a = op.transpose_a,
                     .transpose_b = op.transpose_b,
                     .m = op.m(),
                     .n = op.n(),
                     .k = op.k(),
                     .alpha = static_cast<T>(op.alpha),
                     .a = op.a.data<T>(),
                     .lda = stride(op.a),
                     .b = op.b.data<T>(),
                     .ldb = stride(op.b),
                     .beta = static_cast<T>(op.beta),
                     .c = op.c.data<T>(),
                     .ldc = stride(op.c)};
  FATHOM_CHECK_EQ(g.k, op.b.dim(op.b.rank() - (op.transpose_b ? 1 : 2))) << "inner sizes";
  FATHOM_CHECK_EQ(g.n, op.b.dim(op.b.rank() - (op.transpose_b ? 2 : 1))) << "columns";
  FATHOM_CHECK_EQ(g.m, op.a.dim(op.a.rank() - (op.transpose_a ? 1 : 2))) << "rows";
  const double work = 2.0 * g.m * g.n * g.k / 8;  // a product's operations are cheap
  if (batched) {
    FATHOM_CHECK(op.count.absent()) << "a batch of products has no count";
    cpu::ParallelTasks(stream, op.batch(), work, [&](int64_t i, int thread) {
      const cpu::SingleThreaded single;
      GemmArguments<T> one = g;
      one.a += i * op.a.row_stride();
      one.b += i * op.b.row_stride();
      one.c += i * op.c.row_stride();
      const Tiles tiles = {op.transpose_a ? 1 : DivideUp(g.m, cpu::kGemmMaximumRows), 1};
      for (int64_t j = 0; j < tiles.row_tiles; ++j) {
        TileGemm(Tile(one, tiles, j), stream, thread);
      }
    });
    return;
  }
  (op.transpose_a ? g.k : g.m) = cpu::RowsInUse(op.count, op.transpose_a ? g.k : g.m);
  const Tiles tiles = TilesFor(stream, op.transpose_a, g.m, g.n);
  const int64_t tasks = tiles.row_tiles * tiles.column_tiles;
  cpu::ParallelTasks(stream, tasks, work / tasks, [&](int64_t task, int thread) {
    const cpu::SingleThreaded single;
    TileGemm(Tile(g, tiles, task), stream, thread);
  });
}

}  // namespace

void RunOnCpu(const MatMul& operation, CpuStream& stream) {
  cpu::Dispatch(operation.c.dtype(),
                [&](auto type) { RunMatMul<decltype(type)>(operation, stream); });
}

}  // namespace fathom
