#pragma once

#include <memory>
#include <string>

#include "core/cpu_device.h"
#include "core/job.h"

namespace fathom {

// The device that a job asks for. `device.threads` 0 means all cores this process may use.
std::unique_ptr<Device> MakeDevice(const Job& job);

// One line to standard error, as every message to the user that is not a result.
void LogLine(const std::string& line);

// The oldest processor that the build supports, checked before anything else runs:
// FailedPrecondition naming what is missing.
absl::Status CheckProcessor();

}  // namespace fathom
