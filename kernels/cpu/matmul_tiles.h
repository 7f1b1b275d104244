#pragma once

#include <algorithm>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/parallel.h"

// A product is cut into tiles of c, each computed by one thread. How many columns a tile has does
// not depend on the number of rows, and its rows keep to Gemm's rule, so that a row's bits depend
// on nothing but itself and b.
namespace fathom::cpu {

inline int64_t DivideUp(int64_t a, int64_t b) { return (a + b - 1) / b; }

// What a multiply-add is in the elementary operations of ParallelFor: they are cheap.
inline constexpr double kWorkOfAMultiplyAdd = 0.25;

struct Tiles {
  int64_t count() const { return row_tiles * column_tiles; }

  int64_t row_tiles;
  int64_t column_tiles;
};

// Columns for at most `threads` threads: narrower tiles repeat too much of a's packing.
inline int64_t ColumnTiles(int64_t threads, int64_t n) {
  constexpr int64_t kColumns = 256;
  return std::clamp<int64_t>(n / kColumns, 1, threads);
}

template <class Rule>
Tiles TilesFor(int64_t threads, bool transpose_a, int64_t m, int64_t n) {
  const int64_t column_tiles = ColumnTiles(threads, n);
  const int64_t wanted = DivideUp(threads, column_tiles);
  if (transpose_a) return {std::clamp<int64_t>(m / 64, 1, wanted), column_tiles};
  // A narrow product divides its rows among the threads.
  const int64_t most = std::max<int64_t>(1, m / Rule::kRowMultiple);
  return {std::max(DivideUp(m, Rule::kMaximumRows), std::min(wanted, most)), column_tiles};
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

// The part of a product that is tile `tile` of `tiles`.
template <class T, class C>
GemmArguments<T, C> Tile(const GemmArguments<T, C>& g, const Tiles& tiles, int64_t tile) {
  constexpr int64_t kColumnMultiple = 16;  // a cache line
  const Part rows(g.m, tiles.row_tiles, GemmRule<T>::kRowMultiple, tile / tiles.column_tiles);
  const Part columns(g.n, tiles.column_tiles, kColumnMultiple, tile % tiles.column_tiles);
  GemmArguments<T, C> part = g;
  part.m = rows.end - rows.begin;
  part.n = columns.end - columns.begin;
  part.a += g.transpose_a ? rows.begin : rows.begin * g.lda;
  part.b += g.transpose_b ? columns.begin * g.ldb : columns.begin;
  part.c += rows.begin * g.ldc + columns.begin;
  return part;
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
  Gemm(filled);
  for (int64_t i = 0; i < g.m; ++i) std::copy_n(c + i * g.ldc, g.n, g.c + i * g.ldc);
}

// The product of one tile, by the calling worker.
template <class T, class C>
void TileGemm(const GemmArguments<T, C>& g, CpuStream& stream, int thread) {
  if (g.m <= 0 || g.n <= 0) return;
  const int64_t rows = g.transpose_a || g.k == 0 ? g.m : GemmRule<T>::Rows(g.m);
  if (rows > g.m) {
    GemmOfMoreRows(g, rows, stream, thread);
  } else {
    Gemm(g);
  }
}

}  // namespace fathom::cpu
