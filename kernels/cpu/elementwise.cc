#include "kernels/elementwise.h"

#include <cstring>

#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/sum.h"

namespace fathom {
namespace {

using cpu::RowsOf;

// A tensor as rows of equal width; a contiguous one has a single row.
struct Extent {
  int64_t rows;
  int64_t width;
};

Extent ExtentOf(const Tensor& x, bool flat) {
  if (flat || x.rank() == 0 || x.dim(0) == 0) return {1, x.elements()};
  return {x.dim(0), x.elements() / x.dim(0)};
}

// body(row, begin, end) over all elements.
template <class Body>
void ForElements(CpuStream& stream, const Extent& extent, const Body& body) {
  if (extent.rows == 1) {
    cpu::ParallelFor(stream, extent.width, 1,
                     [&](int64_t begin, int64_t end, int) { body(int64_t{0}, begin, end); });
    return;
  }
  cpu::ParallelFor(stream, extent.rows, extent.width, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) body(row, int64_t{0}, extent.width);
  });
}

template <class T>
void FillWith(const Fill& op, CpuStream& stream) {
  const RowsOf<T> y(op.y);
  const T value = static_cast<T>(op.value);
  ForElements(stream, ExtentOf(op.y, op.y.contiguous()),
              [&](int64_t row, int64_t begin, int64_t end) {
                std::fill(y[row] + begin, y[row] + end, value);
              });
}

template <class From, class To>
void Convert(const Copy& op, CpuStream& stream) {
  const RowsOf<From> x(op.x);
  const RowsOf<To> y(op.y);
  ForElements(stream, ExtentOf(op.y, op.x.contiguous() && op.y.contiguous()),
              [&](int64_t row, int64_t begin, int64_t end) {
                const From* from = x[row];
                To* to = y[row];
                for (int64_t j = begin; j < end; ++j) to[j] = static_cast<To>(from[j]);
              });
}

// Rows of equal dtype, as bytes: to(i) = from(i). A null from(i) stands for zeros, a null to(i) is
// passed over.
template <class From, class To>
void MoveRows(CpuStream& stream, int64_t rows, int64_t bytes, const From& from, const To& to) {
  cpu::ParallelFor(stream, rows, bytes / 4.0, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      char* target = to(i);
      if (target == nullptr) continue;
      const char* source = from(i);
      if (source == nullptr) {
        std::memset(target, 0, bytes);
      } else {
        std::memcpy(target, source, bytes);
      }
    }
  });
}

char* RowAddress(const Tensor& x, int64_t row) {
  FATHOM_CHECK(row >= 0 && row < x.dim(0)) << "row " << row << " of " << x.shape().ToString();
  return static_cast<char*>(x.raw()) + row * x.row_stride() * SizeOf(x.dtype());
}

// Of row `row` of the tensor that x is a window of; null outside of the window.
char* AddressInWindow(const Tensor& x, int64_t first_row, int64_t row) {
  FATHOM_CHECK(row >= 0) << "row " << row;
  const int64_t place = cpu::PlaceInWindow(row, first_row, x.dim(0));
  return place < 0 ? nullptr : RowAddress(x, place);
}

int64_t RowBytes(const Tensor& x) {
  return x.dim(0) == 0 ? 0 : x.elements() / x.dim(0) * SizeOf(x.dtype());
}

}  // namespace

void RunOnCpu(const Fill& operation, CpuStream& stream) {
  if (operation.y.elements() == 0) return;
  switch (operation.y.dtype()) {
    case DType::kInt32:
      return FillWith<int32_t>(operation, stream);
    case DType::kInt64:
      return FillWith<int64_t>(operation, stream);
    default:
      cpu::Dispatch(operation.y.dtype(),
                    [&](auto type) { FillWith<decltype(type)>(operation, stream); });
  }
}

void RunOnCpu(const Copy& operation, CpuStream& stream) {
  const Copy& op = operation;
  FATHOM_CHECK(op.x.shape() == op.y.shape())
      << "copying " << op.x.shape().ToString() << " to " << op.y.shape().ToString();
  if (op.y.elements() == 0) return;
  if (op.x.dtype() == op.y.dtype()) {
    if (op.x.contiguous() && op.y.contiguous()) {
      const int64_t size = SizeOf(op.x.dtype());
      cpu::ParallelFor(stream, op.x.elements(), 1, [&](int64_t begin, int64_t end, int) {
        std::memcpy(static_cast<char*>(op.y.raw()) + begin * size,
                    static_cast<const char*>(op.x.raw()) + begin * size, (end - begin) * size);
      });
      return;
    }
    MoveRows(
        stream, op.x.dim(0), RowBytes(op.x), [&](int64_t i) { return RowAddress(op.x, i); },
        [&](int64_t i) { return RowAddress(op.y, i); });
    return;
  }
  cpu::Dispatch(op.x.dtype(), [&](auto from) {
    cpu::Dispatch(op.y.dtype(),
                  [&](auto to) { Convert<decltype(from), decltype(to)>(op, stream); });
  });
}

void RunOnCpu(const Axpby& operation, CpuStream& stream) {
  const Axpby& op = operation;
  FATHOM_CHECK(op.x.shape() == op.y.shape())
      << "adding " << op.x.shape().ToString() << " to " << op.y.shape().ToString();
  if (op.y.elements() == 0) return;
  cpu::Dispatch(op.y.dtype(), [&](auto type) {
    using T = decltype(type);
    using S = cpu::Stat<T>;
    const RowsOf<T> x(op.x);
    const RowsOf<T> y(op.y);
    const S a = static_cast<S>(op.a);
    const S b = static_cast<S>(op.b);
    ForElements(stream, ExtentOf(op.y, op.x.contiguous() && op.y.contiguous()),
                [&](int64_t row, int64_t begin, int64_t end) {
                  const T* from = x[row];
                  T* to = y[row];
                  if (b == 0) {
                    for (int64_t j = begin; j < end; ++j) {
                      to[j] = static_cast<T>(a * static_cast<S>(from[j]));
                    }
                    return;
                  }
                  for (int64_t j = begin; j < end; ++j) {
                    to[j] = static_cast<T>(a * static_cast<S>(from[j]) + b * static_cast<S>(to[j]));
                  }
                });
  });
}

void RunOnCpu(const GatherRows& operation, CpuStream& stream) {
  const GatherRows& op = operation;
  const int32_t* index = op.index.data<int32_t>();
  MoveRows(
      stream, cpu::RowsInUse(op.count, op.y.dim(0)), RowBytes(op.y),
      [&](int64_t i) { return AddressInWindow(op.x, op.first_row, index[i]); },
      [&](int64_t i) { return RowAddress(op.y, i); });
}

void RunOnCpu(const ScatterRows& operation, CpuStream& stream) {
  const ScatterRows& op = operation;
  const int32_t* index = op.index.data<int32_t>();
  MoveRows(
      stream, cpu::RowsInUse(op.count, op.x.dim(0)), RowBytes(op.x),
      [&](int64_t i) { return RowAddress(op.x, i); },
      [&](int64_t i) { return AddressInWindow(op.y, op.first_row, index[i]); });
}

void RunOnCpu(const Sum& operation, CpuStream& stream) {
  FATHOM_CHECK(operation.x.contiguous());
  cpu::Dispatch(operation.x.dtype(), [&](auto type) {
    const auto* x = operation.x.data<decltype(type)>();
    const double sum = cpu::BlockedSum(stream, operation.x.elements(),
                                       [&](int64_t j) { return static_cast<double>(x[j]); });
    *operation.sum.data<double>() += operation.factor * sum;
  });
}

void RunOnCpu(const SumOfSquares& operation, CpuStream& stream) {
  FATHOM_CHECK(operation.x.contiguous());
  cpu::Dispatch(operation.x.dtype(), [&](auto type) {
    const auto* x = operation.x.data<decltype(type)>();
    *operation.sum.data<double>() +=
        cpu::BlockedSum(stream, operation.x.elements(), [&](int64_t j) {
          const double value = static_cast<double>(x[j]);
          return value * value;
        });
  });
}

}  // namespace fathom
