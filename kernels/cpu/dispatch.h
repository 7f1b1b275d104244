#pragma once

#include "core/check.h"
#include "core/tensor.h"

namespace fathom::cpu {

// The type of statistics, scores and sums beside values of type T, in which T is computed on.
template <class T>
struct StatisticsOf {
  using Type = float;
};
template <>
struct StatisticsOf<double> {
  using Type = double;
};
template <class T>
using Stat = typename StatisticsOf<T>::Type;

// Calls function(T()) with the value type of a floating dtype. T() is a value to take the type
// of.
template <class Function>
void Dispatch(DType dtype, const Function& function) {
  switch (dtype) {
    case DType::kFloat32:
      function(float());
      return;
    case DType::kFloat64:
      function(double());
      return;
    case DType::kBFloat16:
      function(BFloat16());
      return;
    default:
      FATHOM_CHECK(false) << "no CPU operation on " << Name(dtype);
  }
}

// The same for operands that are of a statistics type.
template <class Function>
void DispatchStatistics(DType dtype, const Function& function) {
  switch (dtype) {
    case DType::kFloat32:
      function(float());
      return;
    case DType::kFloat64:
      function(double());
      return;
    default:
      FATHOM_CHECK(false) << "no CPU operation with statistics in " << Name(dtype);
  }
}

// The rows of an operand.
template <class T>
struct RowsOf {
  explicit RowsOf(const Tensor& tensor)
      : data(tensor.absent() ? nullptr : tensor.data<T>()), stride(tensor.row_stride()) {}
  bool absent() const { return data == nullptr; }
  T* operator[](int64_t row) const { return data + row * stride; }

  T* data;
  int64_t stride;
};

// Where row `item` of a tensor stands in a window of its `size` rows from row `first` on, or -1
// where it does not; the same of columns.
inline int64_t PlaceInWindow(int64_t item, int64_t first, int64_t size) {
  const int64_t place = item - first;
  return place >= 0 && place < size ? place : -1;
}

// The elements of an optional vector.
template <class T>
T* DataOf(const Tensor& tensor) {
  return tensor.absent() ? nullptr : tensor.data<T>();
}

// The rows in use: `count`'s value, or all of `rows` when it is absent.
inline int64_t RowsInUse(const Tensor& count, int64_t rows) {
  if (count.absent()) return rows;
  const int64_t used = *count.data<int32_t>();
  FATHOM_CHECK(used >= 0 && used <= rows) << used << " rows in use of " << rows;
  return used;
}

}  // namespace fathom::cpu
