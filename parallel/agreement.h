#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "parallel/communicator.h"

namespace fathom {

// What rank 0 found out alone, such as the directory to resume from, or why it cannot go on: its
// text or its error on every rank, so that none waits for one that has left. Called by all ranks of
// `world`; `mine` of the others is not used.
absl::StatusOr<std::string> FromFirstRank(Communicator& world, Stream& stream,
                                          const absl::StatusOr<std::string>& mine);

}  // namespace fathom
