#include <atomic>

#include "core/device.h"

namespace fathom {
namespace {

class DryStream final : public Stream {
 public:
  explicit DryStream(Device& device) : device_(device) {}
  Device& device() override { return device_; }
  void CopyToDevice(const void*, const Tensor&) override {}
  void CopyToHost(const Tensor&, void*) override {}
  absl::Status Synchronize() override { return absl::OkStatus(); }

 private:
  Device& device_;
};

class DryDevice final : public Device {
 public:
  DeviceKind kind() const override { return DeviceKind::kDry; }
  std::string description() const override { return "dry run"; }
  absl::StatusOr<void*> Allocate(int64_t bytes) override {
    // Addresses that look like memory and are none: distinct, aligned, never followed.
    const int64_t aligned = (bytes + 255) / 256 * 256 + 256;
    return reinterpret_cast<void*>(next_.fetch_add(aligned));
  }
  void Free(void*, int64_t) override {}
  std::unique_ptr<Stream> NewStream() override { return std::make_unique<DryStream>(*this); }

 private:
  std::atomic<int64_t> next_{int64_t{1} << 48};
};

}  // namespace

std::unique_ptr<Device> NewDryDevice() { return std::make_unique<DryDevice>(); }

}  // namespace fathom
