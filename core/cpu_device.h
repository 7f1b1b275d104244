#pragma once

#include <vector>

#include "core/device.h"
#include "core/worker_pool.h"

namespace fathom {

// The host's processor. Streams run operations inline.
class CpuDevice final : public Device {
 public:
  // `threads` per operation, at least 1.
  explicit CpuDevice(int threads);

  DeviceKind kind() const override { return DeviceKind::kCpu; }
  std::string description() const override;
  absl::StatusOr<void*> Allocate(int64_t bytes) override;
  void Free(void* data, int64_t bytes) override;
  std::unique_ptr<Stream> NewStream() override;
  int threads() const { return threads_; }

 private:
  int threads_;
};

// What the CPU's operations need of their stream: a number of threads, and scratch memory.
class CpuStream final : public Stream {
 public:
  explicit CpuStream(CpuDevice& device);
  ~CpuStream() override;

  Device& device() override { return device_; }
  void CopyToDevice(const void* host, const Tensor& to) override;
  void CopyToHost(const Tensor& from, void* host) override;
  absl::Status Synchronize() override { return absl::OkStatus(); }

  int threads() const { return device_.threads(); }
  // threads() of them, for this stream's operations.
  WorkerPool& workers() { return workers_; }
  // At least `bytes` of memory for worker `thread` (0 to threads() - 1), aligned to 64 bytes. It is
  // kept between operations, as shared memory of a GPU is: contents undefined, valid until the
  // same worker asks again. Different workers may call at the same time.
  void* Scratch(int thread, int64_t bytes);

 private:
  struct Block {
    void* data = nullptr;
    int64_t bytes = 0;
  };
  CpuDevice& device_;
  WorkerPool workers_;
  std::vector<Block> scratch_;  // one per worker
};

}  // namespace fathom
