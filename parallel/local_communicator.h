#pragma once

#include <memory>

#include "parallel/communicator.h"

namespace fathom {

// The only rank of a job. Every operation is a copy, done when the call returns. Abort prints the
// cause and ends the process with status 1.
std::unique_ptr<Communicator> NewLocalCommunicator(const CommunicatorOptions& options = {});

}  // namespace fathom
