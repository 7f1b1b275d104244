#include "core/buffer.h"

#include <utility>

#include "core/status.h"

namespace fathom {

absl::StatusOr<Buffer> Buffer::Allocate(Device& device, int64_t bytes) {
  Buffer buffer;
  FATHOM_ASSIGN_OR_RETURN(buffer.data_, device.Allocate(bytes));
  buffer.device_ = &device;
  buffer.bytes_ = bytes;
  return buffer;
}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Buffer::~Buffer() {
  if (device_ != nullptr) device_->Free(data_, bytes_);
}

Tensor Buffer::View(int64_t offset, DType dtype, Shape shape) const {
  Tensor view(static_cast<char*>(data_) + offset, dtype, shape);
  FATHOM_CHECK(offset >= 0 && offset + view.bytes() <= bytes_);
  return view;
}

}  // namespace fathom
