#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "parallel/communicator.h"

namespace fathom {

// What rank 0 found out alone, such as the directory to resume from, or why it cannot go on, so
// that none waits for one that has left: its text on every rank, or its error on rank 0 and
// Aborted, with the same message, on the others. Called by all ranks of `world`; `mine` of the
// others is not used.
absl::StatusOr<std::string> FromFirstRank(Communicator& world, Stream& stream,
                                          const absl::StatusOr<std::string>& mine);

// What all ranks hear of each other.
struct Agreement {
  // OK when no rank has failed. Else that of the first rank that has, on itself; on the others
  // Aborted, "rank 3: MESSAGE".
  absl::Status status;
  std::vector<std::string> texts;  // of every rank when the status is OK
};

// Meets all ranks of `world`, which call it with what each has found out or why it has failed, so
// that all go on, or none. The status of the call itself is that of the communicator.
absl::StatusOr<Agreement> AgreeOverRanks(Communicator& world, Stream& stream,
                                         const absl::StatusOr<std::string>& mine);

}  // namespace fathom
