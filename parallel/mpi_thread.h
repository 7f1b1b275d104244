#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "parallel/completion.h"
#include "parallel/exchange.h"
#include "parallel/mpi_headers.h"

// The thread that owns MPI. Used by mpi_communicator only.
namespace fathom {

// What the thread knows of a communicator. Its fields belong to the thread once operations are
// submitted.
struct MpiGroup {
  struct Operation {
    CollectiveRequest request;
    std::shared_ptr<PendingOperation> pending;
    bool planned = false;
    int tag = 0;
    std::vector<ExchangeRound> rounds;
    size_t round = 0;                   // the one in flight
    std::vector<MPI_Request> requests;  // receives of the round, then its sends
  };

  MPI_Comm comm = MPI_COMM_NULL;
  int rank = 0;
  int size = 1;
  int64_t collectives = 0;  // started so far; numbers the messages' tags
  // In order of issue; a list of pointers, so that an operation stays where MPI knows it.
  std::deque<std::unique_ptr<Operation>> queue;
};

class MpiThread {
 public:
  // Starts the thread and, on it, MPI. `world` is filled in. DeadlineExceeded when MPI has not
  // started after `limit`, which it does on all ranks together; the thread then goes on trying.
  static absl::StatusOr<std::shared_ptr<MpiThread>> Start(const ExchangeLimits& limits,
                                                          std::shared_ptr<MpiGroup> world,
                                                          std::chrono::milliseconds limit);
  // Ends the thread. MPI stays as it is.
  ~MpiThread();

  // Appends an operation to the queue of `group`.
  void Submit(std::shared_ptr<MpiGroup> group, CollectiveRequest request,
              std::shared_ptr<PendingOperation> pending);

  // Runs `call` on the thread and returns its status. No operation advances meanwhile, so `call`
  // must not depend on one. Gives up (DeadlineExceeded) after `limit`.
  absl::Status Call(std::function<absl::Status()> call, std::chrono::milliseconds limit,
                    const std::string& what);

  // When it returns, no operation touches its operands any more, now or later; those in flight
  // never finish. Calls still run.
  void StopOperations();

  // Ends all processes of the job with exit status 1.
  [[noreturn]] void Abort();

 private:
  explicit MpiThread(const ExchangeLimits& limits) : limits_(limits) {}

  struct Submission {
    std::shared_ptr<MpiGroup> group;
    std::unique_ptr<MpiGroup::Operation> operation;
  };

  void Run();
  void RunCalls();
  // All of these say whether anything moved.
  bool RunOperations();
  bool Accept();
  bool Advance(MpiGroup* group);
  // Sets `*done` when the operation has ended.
  bool AdvanceOperation(MpiGroup* group, MpiGroup::Operation* operation, bool* done);
  void Plan(MpiGroup* group, MpiGroup::Operation* operation);
  absl::Status Post(MpiGroup* group, MpiGroup::Operation* operation);
  absl::Status TestRound(MpiGroup::Operation* operation, bool* arrived);
  void Rest();

  const ExchangeLimits limits_;
  std::thread thread_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Submission> submissions_;
  std::vector<std::function<void()>> calls_;
  bool stopping_ = false;

  // The thread's own.
  // With operations in their queues. Shared, since a caller may drop its communicator as soon as
  // the last operation is done.
  std::vector<std::shared_ptr<MpiGroup>> active_;
  bool operations_stopped_ = false;
  int idle_rounds_ = 0;  // in a row
  int largest_tag_ = 32767;
};

// The text of an MPI error code, as an Unavailable status that names the MPI function.
absl::Status MpiError(int code, const char* function);

}  // namespace fathom
