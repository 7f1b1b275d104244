#include "core/arena.h"

#include <algorithm>

namespace fathom {

Arena::Arena(Device& device, int64_t block_bytes) : device_(device), block_bytes_(block_bytes) {}

Tensor Arena::New(DType dtype, Shape shape) {
  constexpr int64_t kAlignment = 64;
  const int64_t bytes = std::max(
      kAlignment, (shape.elements() * SizeOf(dtype) + kAlignment - 1) / kAlignment * kAlignment);
  while (block_ < blocks_.size() && used_ + bytes > blocks_[block_].bytes()) {
    ++block_;
    used_ = 0;
  }
  if (block_ == blocks_.size()) {
    absl::StatusOr<Buffer> buffer = Buffer::Allocate(device_, std::max(block_bytes_, bytes));
    FATHOM_CHECK(buffer.ok()) << buffer.status().message();
    blocks_.push_back(*std::move(buffer));
    used_ = 0;
  }
  Tensor tensor = blocks_[block_].View(used_, dtype, shape);
  used_ += bytes;
  in_use_ += bytes;
  peak_ = std::max(peak_, in_use_);
  return tensor;
}

void Arena::Release(const Mark& mark) {
  FATHOM_CHECK(mark.in_use <= in_use_) << "arenas are given back in reverse order";
  block_ = mark.block;
  used_ = mark.used;
  in_use_ = mark.in_use;
}

}  // namespace fathom
