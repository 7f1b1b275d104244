#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "parallel/communicator.h"

namespace fathom {

// The first thing that a job's ranks do together: each sends its number to the next rank and
// receives the previous one's, the last rank's next one being rank 0. Where two hosts do not reach
// each other, this says which two; a collective would only say that it waited.
//
// Called by all ranks. hosts[rank] names each rank's host, as far as this rank knows; empty:
// unknown. DeadlineExceeded when a neighbour has not answered after `timeout`:
//   "rank 3 on host a did not hear from rank 2 on host b within 30 s: ..."
// An error of the operation itself is returned behind the same words. Of the others only the
// neighbours of a silent rank notice: the next one always, the previous one unless its message
// leaves without being received. After an error only Communicator::Abort is left to call.
absl::Status ExchangeAlongRing(Communicator& world, Stream& stream,
                               const std::vector<std::string>& hosts,
                               std::chrono::milliseconds timeout);

}  // namespace fathom
