#pragma once

#include "absl/status/statusor.h"
#include "core/device.h"

namespace fathom {

// FLOP/s of large matrix products on this device, measured for about a quarter of a second: what
// utilisation is relative to.
absl::StatusOr<double> MeasureMatMulRate(Device& device, DType dtype);

}  // namespace fathom
