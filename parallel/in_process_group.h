#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "parallel/collective.h"
#include "parallel/completion.h"

// The meeting point of the threads that form one group. Used by in_process_communicator only.
namespace fathom {

class InProcessGroup {
 public:
  using Clock = std::chrono::steady_clock;
  // How long the transfer of `bytes` lasts; called under the group's lock, in the order in which
  // transfers begin.
  using Delay = std::function<std::chrono::nanoseconds(int64_t bytes)>;

  // Without `delay` transfers are done as soon as all their ranks have issued them.
  InProcessGroup(int size, int64_t chunk_elements, Delay delay);

  // Adds an operation at the end of `rank`'s queue and executes what has become ready. Returns the
  // earliest end of a transfer in flight, Clock::time_point::max() when there is none: the owner
  // calls Pump no earlier than that.
  Clock::time_point Enqueue(int rank, CollectiveRequest request,
                            std::shared_ptr<PendingOperation> pending);
  Clock::time_point Pump(Clock::time_point now);

  // Finishes all operations, now and in the future, with `status`.
  void Cancel(const absl::Status& status);

 private:
  struct Operation {
    CollectiveRequest request;
    std::shared_ptr<PendingOperation> pending;
    bool in_flight = false;
    Clock::time_point end;
  };
  using Queue = std::deque<Operation>;

  // All of these are called under the lock. The bool ones say whether something happened.
  Clock::time_point PumpLocked(Clock::time_point now);
  bool AdvanceCollective(Clock::time_point now);
  bool AdvanceTransfers(int from, Clock::time_point now);
  Operation* FindTransfer(int rank, Collective direction, int peer);
  void Depart(Operation& operation, Clock::time_point now, Clock::time_point* link);
  void ExecuteCollective();
  void FinishTransfer(int from, int to, Operation* send, Operation* receive);
  void EraseOperation(int rank, const Operation* operation);

  const int size_;
  const int64_t chunk_elements_;
  const Delay delay_;

  std::mutex mutex_;
  absl::Status cancelled_;
  std::vector<Queue> queues_;  // per rank, in order of issue
  Clock::time_point collective_link_;
  std::map<std::pair<int, int>, Clock::time_point> links_;  // when a pair's last transfer ends
};

// The data movement of one collective over all ranks, whose requests are given in rank order.
// FailedPrecondition when they do not belong together. Sums are taken in rank order.
absl::Status ExecuteTogether(const std::vector<const CollectiveRequest*>& requests,
                             int64_t chunk_elements);

// The data movement of a send and its receive.
void CopyTransfer(const Tensor& from, const Tensor& to, int64_t chunk_elements);

}  // namespace fathom
