#pragma once

#include <atomic>

namespace fathom {

// Ctrl-C, SIGTERM and SIGUSR1 as a request to stop. The first one is only noted, for the run to
// finish its step and save; a second one ends the process at once with status 128 + signal.
// (mpirun passes SIGUSR1 on to its ranks and leaves it at that; after a SIGTERM of its own it kills
// them within a second.)
//
// A thread of its own waits for them, and all others have them blocked: oneDNN's generated code
// uses the stack pointer as it likes, so that a handler which ran on top of it would write into the
// heap.
//
// Call it before any other thread is started. The number of the first signal appears in what it
// returns, 0 until then.
const std::atomic<int>& WatchStopSignals();

}  // namespace fathom
