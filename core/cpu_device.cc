#include "core/cpu_device.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace fathom {

CpuDevice::CpuDevice(int threads) : threads_(threads) { FATHOM_CHECK(threads >= 1); }

std::string CpuDevice::description() const {
  return absl::StrCat("CPU, ", threads_, threads_ == 1 ? " thread" : " threads");
}

absl::StatusOr<void*> CpuDevice::Allocate(int64_t bytes) {
  constexpr int64_t kAlignment = 256;
  const int64_t rounded =
      std::max<int64_t>(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
  void* data = std::aligned_alloc(kAlignment, rounded);
  if (data == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat("the CPU has no ", bytes, " bytes of memory"));
  }
  return data;
}

void CpuDevice::Free(void* data, int64_t) { std::free(data); }

std::unique_ptr<Stream> CpuDevice::NewStream() { return std::make_unique<CpuStream>(*this); }

CpuStream::CpuStream(CpuDevice& device)
    : device_(device), workers_(device.threads()), scratch_(device.threads()) {}

CpuStream::~CpuStream() {
  for (Block& block : scratch_) std::free(block.data);
}

void CpuStream::CopyToDevice(const void* host, const Tensor& to) {
  FATHOM_CHECK(to.contiguous());
  if (to.bytes() > 0) std::memcpy(to.raw(), host, to.bytes());
}

void CpuStream::CopyToHost(const Tensor& from, void* host) {
  FATHOM_CHECK(from.contiguous());
  if (from.bytes() > 0) std::memcpy(host, from.raw(), from.bytes());
}

void* CpuStream::Scratch(int thread, int64_t bytes) {
  Block& block = scratch_[thread];
  if (block.bytes < bytes) {
    std::free(block.data);
    block.bytes = (bytes + 4095) / 4096 * 4096;
    block.data = std::aligned_alloc(4096, block.bytes);
    FATHOM_CHECK(block.data != nullptr) << "no memory for " << bytes << " bytes of scratch";
  }
  return block.data;
}

}  // namespace fathom
