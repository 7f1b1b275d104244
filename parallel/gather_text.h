#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "parallel/communicator.h"

namespace fathom {

// Every rank's text, in rank order, each of any length below 2^31 bytes. Called by all ranks;
// blocks. Errors: Completion::Wait's.
absl::StatusOr<std::vector<std::string>> AllGatherText(Communicator& world, Stream& stream,
                                                       const std::string& text);

}  // namespace fathom
