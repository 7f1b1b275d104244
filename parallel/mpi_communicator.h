#pragma once

#include <memory>

#include "parallel/communicator.h"

namespace fathom {

class MpiThread;

// This process as one rank of an MPI job. One thread, started here, makes every MPI call: callers
// never block in MPI, and MPI needs no support for threads beyond MPI_THREAD_FUNNELED.
//
// A process has at most one, made before anything else touches MPI.
class MpiWorld {
 public:
  // Unavailable when MPI does not start; DeadlineExceeded when another rank does not come within
  // `options.watchdog`: the process must then end without touching MPI again (std::_Exit).
  static absl::StatusOr<std::unique_ptr<MpiWorld>> Start(const CommunicatorOptions& options = {});
  // Without Finish, MPI is not finalized: the MPI launcher then ends the other ranks.
  ~MpiWorld();
  MpiWorld(const MpiWorld&) = delete;
  MpiWorld& operator=(const MpiWorld&) = delete;

  // Group "world" of all ranks. It and the groups split from it must be gone before this object is.
  // Abort prints the cause's message and ends all processes of the job; it does not return. From
  // its call on no operation of this rank touches its operands. After a watchdog's cause
  // (DeadlineExceeded) it leaves the other ranks two seconds to print theirs; a cause that is
  // another rank's (Aborted) it prints only if that rank has not ended the job within two seconds.
  Communicator& communicator() { return *communicator_; }

  // The end of a good run, called by all ranks after their last operation: waits for all of them
  // and finalizes MPI. Not to be called after an error, since it might wait for ever; on an error
  // of its own it has not finalized.
  absl::Status Finish();

 private:
  MpiWorld() = default;

  std::chrono::milliseconds watchdog_{0};
  std::shared_ptr<MpiThread> thread_;
  std::unique_ptr<Communicator> communicator_;
};

// Whether this process was started by an MPI launcher (mpirun, or srun with PMIx or PMI), from the
// environment, without touching MPI.
bool StartedByMpiLauncher();

}  // namespace fathom
