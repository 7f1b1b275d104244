#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "core/check.h"
#include "core/dtype.h"

namespace fathom {

// The dims of a tensor, at most four, slowest first.
class Shape {
 public:
  static constexpr int kMaximumRank = 4;

  Shape() = default;
  Shape(std::initializer_list<int64_t> dims) {
    FATHOM_CHECK(dims.size() <= kMaximumRank);
    for (int64_t dim : dims) dims_[rank_++] = dim;
  }

  int rank() const { return rank_; }
  int64_t operator[](int i) const { return dims_[i]; }
  int64_t elements() const {
    int64_t product = 1;
    for (int i = 0; i < rank_; ++i) product *= dims_[i];
    return product;
  }
  void Append(int64_t dim) {
    FATHOM_CHECK(rank_ < kMaximumRank);
    dims_[rank_++] = dim;
  }
  bool operator==(const Shape&) const = default;

  // "[128, 64]"
  std::string ToString() const;

 private:
  int rank_ = 0;
  std::array<int64_t, kMaximumRank> dims_ = {};
};

// A view of memory on some device: it does not own and is passed by value. Elements of one row
// (an index of the first dim) are contiguous; rows are row_stride() elements apart. A
// default-constructed Tensor is "absent", which operations take for their optional fields.
class Tensor {
 public:
  Tensor() = default;
  Tensor(void* data, DType dtype, Shape shape)
      : data_(data),
        dtype_(dtype),
        shape_(shape),
        row_stride_(shape.rank() == 0 || shape[0] == 0 ? 1 : shape.elements() / shape[0]) {}

  bool absent() const { return data_ == nullptr; }
  void* raw() const { return data_; }
  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  int rank() const { return shape_.rank(); }
  int64_t dim(int i) const { return shape_[i]; }
  int64_t elements() const { return shape_.elements(); }
  int64_t bytes() const { return elements() * SizeOf(dtype_); }
  int64_t row_stride() const { return row_stride_; }
  bool contiguous() const {
    return rank() == 0 || dim(0) <= 1 || row_stride_ * dim(0) == elements();
  }

  // The elements as T, which must be the dtype's type. Only code of the device that owns the memory
  // may follow the pointer.
  template <class T>
  T* data() const {
    FATHOM_CHECK(dtype_ == DTypeOf<T>) << "the tensor holds " << Name(dtype_);
    return static_cast<T*>(data_);
  }

  // Rows begin to end - 1, sharing memory.
  Tensor Rows(int64_t begin, int64_t end) const;
  // Columns begin to end - 1 of a matrix, sharing memory and row stride.
  Tensor Columns(int64_t begin, int64_t end) const;
  // The same elements under other dims; contiguous tensors only.
  Tensor Reshape(Shape shape) const;

 private:
  void* data_ = nullptr;
  DType dtype_ = DType::kFloat32;
  Shape shape_;
  int64_t row_stride_ = 1;
};

}  // namespace fathom
