#include "core/tensor.h"

namespace fathom {

std::string Shape::ToString() const {
  std::string text = "[";
  for (int i = 0; i < rank_; ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(dims_[i]);
  }
  return text + "]";
}

Tensor Tensor::Rows(int64_t begin, int64_t end) const {
  FATHOM_CHECK(rank() >= 1 && 0 <= begin && begin <= end && end <= dim(0))
      << "rows " << begin << " to " << end << " of " << shape_.ToString();
  Shape shape{end - begin};
  for (int i = 1; i < rank(); ++i) shape.Append(dim(i));
  Tensor rows(static_cast<char*>(data_) + begin * row_stride_ * SizeOf(dtype_), dtype_, shape);
  rows.row_stride_ = row_stride_;
  return rows;
}

Tensor Tensor::Columns(int64_t begin, int64_t end) const {
  FATHOM_CHECK(rank() == 2 && 0 <= begin && begin <= end && end <= dim(1))
      << "columns " << begin << " to " << end << " of " << shape_.ToString();
  Tensor columns(static_cast<char*>(data_) + begin * SizeOf(dtype_), dtype_, {dim(0), end - begin});
  columns.row_stride_ = row_stride_;
  return columns;
}

Tensor Tensor::Reshape(Shape shape) const {
  FATHOM_CHECK(contiguous()) << "a strided tensor cannot be reshaped";
  FATHOM_CHECK_EQ(shape.elements(), elements());
  return Tensor(data_, dtype_, shape);
}

}  // namespace fathom
