#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>

#include "absl/status/status.h"
#include "core/device.h"
#include "parallel/communication_log.h"

namespace fathom {

// A copy that shares no memory with `status`. A status that many ranks get is handed to each as
// one, so that the thread sanitizer need not see into Abseil's reference counts.
absl::Status DetachedCopy(const absl::Status& status);

// An operation that a backend has accepted: the backend finishes it, the caller waits for it
// through a Completion. Thread-safe.
class PendingOperation {
 public:
  // What is needed to say which operation a rank waited for.
  struct Description {
    Collective collective = Collective::kBarrier;
    int64_t order = 0;  // of its communicator, from 0
    int64_t bytes = 0;
    int peer = -1;
    int rank = 0;  // in the group
    int group_size = 1;
    std::shared_ptr<const std::string> group;
    std::shared_ptr<const std::string> rank_label;  // "rank 3" of the job
    std::chrono::milliseconds watchdog{60000};
  };

  PendingOperation(Description description, std::shared_ptr<CommunicationLog> log);

  // The first call counts. Wakes all who wait.
  void Finish(const absl::Status& status);
  bool done() const;
  // DeadlineExceeded once it has waited for `watchdog`.
  absl::Status Wait();

  const Description& description() const { return description_; }
  // "all-reduce number 17 (4096 bytes) of group tensor, as rank 1 of 4"
  std::string ToString() const;

 private:
  friend class Communicator;

  const Description description_;
  const std::shared_ptr<CommunicationLog> log_;
  CommunicationLog::Ticket ticket_;  // set before the operation is started

  mutable std::mutex mutex_;
  std::condition_variable finished_;
  bool done_ = false;
  absl::Status status_;
};

// The end of one enqueued operation. Copies share it. Its operands must stay as they are, inputs
// unchanged and outputs unread, until it is done. Dropping it does not stop the operation.
class [[nodiscard]] Completion {
 public:
  // Done, successfully.
  Completion() = default;
  // Done, with this status.
  explicit Completion(absl::Status status) : status_(std::move(status)) {}
  explicit Completion(std::shared_ptr<PendingOperation> pending) : pending_(std::move(pending)) {}

  // Blocks until the operation is done. Errors: DeadlineExceeded, the watchdog's, names the rank,
  // the operation and its group; Aborted names the first cause and its rank; InvalidArgument for
  // operands that do not fit; FailedPrecondition when the ranks called different things. After an
  // error the operands are still in use: the only way out is Communicator::Abort.
  [[nodiscard]] absl::Status Wait();
  // What is launched on `stream` from here on sees the result. On a device whose streams run
  // inline this is Wait(); elsewhere the host goes on, and errors come with the stream's.
  [[nodiscard]] absl::Status Wait(Stream& stream);
  bool done() const { return pending_ == nullptr || pending_->done(); }

 private:
  std::shared_ptr<PendingOperation> pending_;
  absl::Status status_;
};

}  // namespace fathom
