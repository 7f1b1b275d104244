#include "kernels/matmul.h"

#include <algorithm>

#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/parallel.h"

// A product is cut into tiles of c, each computed by one thread. How many columns a tile has does
// not depend on the number of rows, and its rows keep to Gemm's rule, so that a row's bits depend
// on nothing but itself and b.
namespace fathom {
namespace {

using cpu::GemmArguments;

int64_t DivideUp(int64_t a, int64_t b) { return (a + b - 1) / b; }

struct Tiles {
  int64_t row_tiles;
  int64_t column_tiles;
};

template <class Rule>
Tiles TilesFor(int64_t threads, bool transpose_a, int64_t m, int64_t n) {
  constexpr int64_t kColumns = 256;  // narrower tiles repeat too much of a's packing
  const int64_t column_tiles = std::clamp<int64_t>(n / kColumns, 1, threads);
  const int64_t wanted = DivideUp(threads, column_tiles);
  if (transpose_a) return {std::clamp<int64_t>(m / 64, 1, wanted), column_tiles};
  // A narrow product divides its rows among the threads.
  const int64_t most = std::max<int64_t>(1, m / Rule::kRowMultiple);
  return {std::max(DivideUp(m, Rule::kMaximumRows), std::min(wanted, most)), column_tiles};
}

// Rows of zeros are added in scratch, under the same strides.
template <class T, class C>
void GemmOfMoreRows(const GemmArguments<T, C>& g, int64_t rows, CpuStream& stream, int thread) {
  const int64_t a_bytes = DivideUp(rows * g.lda * sizeof(T), 64) * 64;
  char* scratch = static_cast<char*>(stream.Scratch(thread, a_bytes + rows * g.ldc * sizeof(C)));
  T* a = reinterpret_cast<T*>(scratch);
  C* c = reinterpret_cast<C*>(scratch + a_bytes);
  for (int64_t i = 0; i < rows; ++i) {
    if (i < g.m) {
      std::copy_n(g.a + i * g.lda, g.k, a + i * g.lda);
      if (g.beta != 0) std::copy_n(g.c + i * g.ldc, g.n, c + i * g.ldc);
    } else {
      std::fill_n(a + i * g.lda, g.k, T(0));
      if (g.beta != 0) std::fill_n(c + i * g.ldc, g.n, C(0));
    }
  }
  GemmArguments<T, C> filled = g;
  filled.m = rows;
  filled.a = a;
  filled.c = c;
  cpu::Gemm(filled);
  for (int64_t i = 0; i < g.m; ++i) std::copy_n(c + i * g.ldc, g.n, g.c + i * g.ldc);
}

template <class T, class C>
void TileGemm(const GemmArguments<T, C>& g, CpuStream& stream, int thread) {
  if (g.m <= 0 || g.n <= 0) return;
  const int64_t rows = g.transpose_a || g.k == 0 ? g.m : cpu::GemmRule<T>::Rows(g.m);
  if (rows > g.m) {
    GemmOfMoreRows(g, rows, stream, thread);
  } else {
    cpu::Gemm(g);
  }
}

// Part `part` of `parts` of `size`, in whole multiples; the last parts may be short or empty.
struct Part {
  Part(int64_t size, int64_t parts, int64_t multiple, int64_t part) {
    const int64_t step = DivideUp(DivideUp(size, parts), multiple) * multiple;
    begin = std::min(size, step * part);
    end = std::min(size, step * (part + 1));
  }
  int64_t begin;
  int64_t end;
};

template <class T, class C>
GemmArguments<T, C> Tile(const GemmArguments<T, C>& g, const Tiles& tiles, int64_t task) {
  constexpr int64_t kColumnMultiple = 16;  // a cache line
  const Part rows(g.m, tiles.row_tiles, cpu::GemmRule<T>::kRowMultiple, task / tiles.column_tiles);
  const Part columns(g.n, tiles.column_tiles, kColumnMultiple, task % tiles.column_tiles);
  GemmArguments<T, C> tile = g;
  tile.m = rows.end - rows.begin;
  tile.n = columns.end - columns.begin;
  tile.a += g.transpose_a ? rows.begin : rows.begin * g.lda;
  tile.b += g.transpose_b ? columns.begin * g.ldb : columns.begin;
  tile.c += rows.begin * g.ldc + columns.begin;
  return tile;
}

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
  const double work = 2.0 * g.m * g.n * g.k / 8;  // a product's operations are cheap
  if (batched) {
    FATHOM_CHECK(op.count.absent()) << "a batch of products has no count";
    cpu::ParallelTasks(stream, op.batch(), work, [&](int64_t i, int thread) {
      GemmArguments<T, C> one = g;
      one.a += i * op.a.row_stride();
      one.b += i * op.b.row_stride();
      one.c += i * op.c.row_stride();
      const Tiles tiles = TilesFor<cpu::GemmRule<T>>(1, g.transpose_a, g.m, g.n);
      for (int64_t j = 0; j < tiles.row_tiles; ++j) {
        TileGemm(Tile(one, tiles, j), stream, thread);
      }
    });
    return;
  }
  (op.transpose_a ? g.k : g.m) = cpu::RowsInUse(op.count, op.transpose_a ? g.k : g.m);
  const Tiles tiles = TilesFor<cpu::GemmRule<T>>(stream.threads(), op.transpose_a, g.m, g.n);
  const int64_t tasks = tiles.row_tiles * tiles.column_tiles;
  cpu::ParallelTasks(stream, tasks, work / tasks, [&](int64_t task, int thread) {
    TileGemm(Tile(g, tiles, task), stream, thread);
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
