#include "kernels/grouped_matmul.h"

#include <algorithm>

#include "kernels/cpu/matmul_tiles.h"

// The tiles of all groups are one list of tasks. Columns are divided as MatMul divides them, which
// keeps the bits of a row those of MatMul; rows are divided so that all threads find work.
namespace fathom {
namespace {

using cpu::GemmArguments;
using cpu::Tiles;

// The product of one group that has rows.
template <class T, class C>
struct Group {
  GemmArguments<T, C> product;
  Tiles tiles;
  int64_t first_task;
};

template <class T, class C>
class Groups {
 public:
  void Add(const GemmArguments<T, C>& product, const Tiles& tiles) {
    groups_.push_back({product, tiles, tasks_});
    tasks_ += tiles.count();
    work_ += cpu::kWorkOfAMultiplyAdd * product.m * product.n * product.k;
  }

  void Run(CpuStream& stream) const {
    if (tasks_ == 0) return;
    cpu::ParallelTasks(stream, tasks_, work_ / tasks_, [&](int64_t task, int thread) {
      const auto behind =
          std::upper_bound(groups_.begin(), groups_.end(), task,
                           [](int64_t of, const auto& group) { return of < group.first_task; });
      const Group<T, C>& group = *(behind - 1);
      cpu::TileGemm(cpu::Tile(group.product, group.tiles, task - group.first_task), stream, thread);
    });
  }

 private:
  std::vector<Group<T, C>> groups_;
  int64_t tasks_ = 0;
  double work_ = 0;
};

void CheckRows(const std::vector<int64_t>& rows, const std::vector<Tensor>& matrices,
               int64_t available) {
  FATHOM_CHECK_EQ(rows.size(), matrices.size()) << "groups and their matrices";
  int64_t total = 0;
  for (int64_t of_group : rows) {
    FATHOM_CHECK(of_group >= 0) << of_group << " rows in a group";
    total += of_group;
  }
  FATHOM_CHECK(total <= available) << total << " rows in groups, of " << available;
}

void CheckMatrix(const Tensor& matrix, int64_t rows, int64_t columns) {
  FATHOM_CHECK(matrix.dim(0) == rows && matrix.dim(1) == columns)
      << "a group's matrix is " << matrix.shape().ToString() << ", not " << rows << " x "
      << columns;
}

// How many rows tiles have at most: as many as Gemm's rule allows while there are several tiles for
// each thread, so that the last ones to end do not keep the others waiting.
template <class Rule>
int64_t TileRows(const std::vector<int64_t>& rows, int64_t column_tiles, int64_t threads) {
  constexpr int64_t kTilesOfAThread = 4;
  int64_t multiples = Rule::kMaximumRows / Rule::kRowMultiple;
  while (multiples > 1) {
    int64_t row_tiles = 0;
    for (int64_t of_group : rows) {
      row_tiles += cpu::DivideUp(of_group, multiples * Rule::kRowMultiple);
    }
    if (row_tiles * column_tiles >= kTilesOfAThread * threads) break;
    multiples = cpu::DivideUp(multiples, 2);
  }
  return multiples * Rule::kRowMultiple;
}

template <class T, class C>
void RunGrouped(const GroupedMatMul& op, CpuStream& stream) {
  const int64_t k = op.a.dim(1), n = op.c.dim(1);
  CheckRows(op.rows, op.b, std::min(op.a.dim(0), op.c.dim(0)));
  const int64_t column_tiles = cpu::ColumnTiles(stream.threads(), n);
  const int64_t tile_rows = TileRows<cpu::GemmRule<T>>(op.rows, column_tiles, stream.threads());
  const cpu::RowsOf<T> a(op.a);
  const cpu::RowsOf<C> c(op.c);
  Groups<T, C> groups;
  int64_t first = 0;
  for (size_t g = 0; g < op.rows.size(); ++g) {
    const int64_t rows = op.rows[g];
    if (rows == 0) continue;
    CheckMatrix(op.b[g], op.transpose_b ? n : k, op.transpose_b ? k : n);
    groups.Add({.transpose_b = op.transpose_b,
                .m = rows,
                .n = n,
                .k = k,
                .a = a[first],
                .lda = a.stride,
                .b = op.b[g].data<T>(),
                .ldb = op.b[g].row_stride(),
                .c = c[first],
                .ldc = c.stride},
               {cpu::DivideUp(rows, tile_rows), column_tiles});
    first += rows;
  }
  groups.Run(stream);
}

template <class T>
void RunGroupedOuter(const GroupedOuterMatMul& op, CpuStream& stream) {
  using S = cpu::Stat<T>;
  const int64_t m = op.a.dim(1), n = op.b.dim(1);
  CheckRows(op.rows, op.c, std::min(op.a.dim(0), op.b.dim(0)));
  const Tiles tiles = cpu::TilesFor<cpu::GemmRule<T>>(stream.threads(), true, m, n);
  const cpu::RowsOf<T> a(op.a), b(op.b);
  Groups<T, S> groups;
  int64_t first = 0;
  for (size_t g = 0; g < op.rows.size(); ++g) {
    const int64_t rows = op.rows[g];
    if (rows == 0) continue;
    CheckMatrix(op.c[g], m, n);
    groups.Add({.transpose_a = true,
                .m = m,
                .n = n,
                .k = rows,
                .a = a[first],
                .lda = a.stride,
                .b = b[first],
                .ldb = b.stride,
                .beta = 1,
                .c = op.c[g].data<S>(),
                .ldc = op.c[g].row_stride()},
               tiles);
    first += rows;
  }
  groups.Run(stream);
}

}  // namespace

void RunOnCpu(const GroupedMatMul& operation, CpuStream& stream) {
  cpu::Dispatch(operation.a.dtype(), [&](auto type) {
    using T = decltype(type);
    if (operation.c.dtype() == DTypeOf<T>) {
      RunGrouped<T, T>(operation, stream);
    } else {
      RunGrouped<T, cpu::Stat<T>>(operation, stream);
    }
  });
}

void RunOnCpu(const GroupedOuterMatMul& operation, CpuStream& stream) {
  cpu::Dispatch(operation.a.dtype(),
                [&](auto type) { RunGroupedOuter<decltype(type)>(operation, stream); });
}

}  // namespace fathom
