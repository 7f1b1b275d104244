#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "parallel/communicator.h"

namespace fathom {

// What rank 0 found out alone, such as the directory to resume from, or why it cannot go on, so
// that none waits for one that has left: its text on every rank, or its error on rank 0 and
// Aborted, with the same message, on the others. Called by all ranks of `world`; `mine` of the
// others is not used.
absl::StatusOr<std::string> FromFirstRank(Communicator& world, Stream& stream,
                                          const absl::StatusOr<std::string>& mine);

}  // namespace fathom
