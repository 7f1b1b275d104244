#pragma once

#include <string>

#include "absl/status/status.h"

namespace fathom {

// Prints what a checkpoint, or a run's newest one, holds: one JSON object if `json`. With `verify`
// all of its blocks are read, and what is damaged is printed; DataLoss when anything is.
absl::Status InspectCheckpoint(const std::string& directory, bool json, bool verify);

}  // namespace fathom
