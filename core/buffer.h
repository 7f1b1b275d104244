#pragma once

#include "core/device.h"

namespace fathom {

// Owns one allocation of a device.
class Buffer {
 public:
  Buffer() = default;
  static absl::StatusOr<Buffer> Allocate(Device& device, int64_t bytes);
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();

  int64_t bytes() const { return bytes_; }
  void* data() const { return data_; }
  // A view from byte `offset` on; it must lie inside the buffer.
  Tensor View(int64_t offset, DType dtype, Shape shape) const;

 private:
  Device* device_ = nullptr;
  void* data_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace fathom
