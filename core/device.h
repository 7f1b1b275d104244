#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "core/tensor.h"

namespace fathom {

// What one operation costs on any device, from host-known sizes: the source of FLOPs in reports and
// of the cost model's clock.
struct Cost {
  double matrix_flops = 0;  // multiply-adds of matrix products and attention, two FLOPs each
  double vector_flops = 0;  // all other arithmetic
  double bytes = 0;         // memory traffic if every operand travels once

  Cost& operator+=(const Cost& other) {
    matrix_flops += other.matrix_flops;
    vector_flops += other.vector_flops;
    bytes += other.bytes;
    return *this;
  }
};

enum class DeviceKind {
  kCpu,
  // Executes nothing and allocates nothing: operations only add to the stream's ledger, addresses
  // are never followed. Sizes arenas and counts FLOPs with the very code that trains.
  kDry,
};

class Stream;
class Timeline;

// A place where tensors live and operations run. Thread-safe.
class Device {
 public:
  virtual ~Device() = default;
  virtual DeviceKind kind() const = 0;
  // For the log: "CPU, 2 threads".
  virtual std::string description() const = 0;
  // Memory aligned to 256 bytes, contents undefined. ResourceExhausted when there is none.
  virtual absl::StatusOr<void*> Allocate(int64_t bytes) = 0;
  virtual void Free(void* data, int64_t bytes) = 0;
  // A new in-order queue of operations. It must not outlive the device.
  virtual std::unique_ptr<Stream> NewStream() = 0;
};

// What has been launched on a stream, by the operation's name.
class Ledger {
 public:
  struct Entry {
    int64_t launches = 0;
    Cost cost;
  };

  void Add(std::string_view operation, const Cost& cost) {
    Entry& entry = entries_[operation];
    ++entry.launches;
    entry.cost += cost;
    total_ += cost;
  }
  void Clear() {
    entries_.clear();
    total_ = Cost();
  }
  const Cost& total() const { return total_; }
  const std::map<std::string_view, Entry>& entries() const { return entries_; }

 private:
  Cost total_;
  std::map<std::string_view, Entry> entries_;  // keys are the operations' static names
};

// An in-order queue of operations on one device. Operations are asynchronous to the host unless the
// device runs them inline, as the CPU does. Used by one thread at a time.
class Stream {
 public:
  virtual ~Stream() = default;
  virtual Device& device() = 0;
  // Copies contiguous tensors' bytes between host and device, in stream order. The host memory must
  // stay valid until Synchronize returns.
  virtual void CopyToDevice(const void* host, const Tensor& to) = 0;
  virtual void CopyToHost(const Tensor& from, void* host) = 0;
  // Blocks until all that was launched has finished.
  virtual absl::Status Synchronize() = 0;

  Ledger& ledger() { return ledger_; }

  // From now on operations are recorded as spans of `track`, which is one of the timeline's. Null:
  // they are not recorded. The timeline is not owned.
  void RecordOn(Timeline* timeline, int track) {
    timeline_ = timeline;
    track_ = track;
  }
  Timeline* timeline() const { return timeline_; }
  int track() const { return track_; }

 private:
  Ledger ledger_;
  Timeline* timeline_ = nullptr;
  int track_ = 0;
};

// Executes nothing; see DeviceKind::kDry.
std::unique_ptr<Device> NewDryDevice();

}  // namespace fathom
