#include "parallel/in_process_group.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace fathom {

InProcessGroup::InProcessGroup(int size, int64_t chunk_elements, Delay delay)
    : size_(size), chunk_elements_(chunk_elements), delay_(std::move(delay)), queues_(size) {}

InProcessGroup::Clock::time_point InProcessGroup::Enqueue(
    int rank, CollectiveRequest request, std::shared_ptr<PendingOperation> pending) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!cancelled_.ok()) {
    pending->Finish(cancelled_);
    return Clock::time_point::max();
  }
  queues_[rank].push_back({std::move(request), std::move(pending), false, {}});
  return PumpLocked(Clock::now());
}

InProcessGroup::Clock::time_point InProcessGroup::Pump(Clock::time_point now) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return PumpLocked(now);
}

void InProcessGroup::Cancel(const absl::Status& status) {
  const std::lock_guard<std::mutex> lock(mutex_);
  cancelled_ = DetachedCopy(status);
  for (Queue& queue : queues_) {
    for (Operation& operation : queue) operation.pending->Finish(status);
    queue.clear();
  }
}

InProcessGroup::Clock::time_point InProcessGroup::PumpLocked(Clock::time_point now) {
  bool progress = true;
  while (progress) {
    progress = AdvanceCollective(now);
    for (int rank = 0; rank < size_; ++rank) progress |= AdvanceTransfers(rank, now);
  }
  Clock::time_point next = Clock::time_point::max();
  for (const Queue& queue : queues_) {
    for (const Operation& operation : queue) {
      if (operation.in_flight) next = std::min(next, operation.end);
    }
  }
  return next;
}

// Marks the operation as in flight, behind the last one on the same link.
void InProcessGroup::Depart(Operation& operation, Clock::time_point now, Clock::time_point* link) {
  operation.in_flight = true;
  operation.end = now;
  if (delay_) operation.end = std::max(now, *link) + delay_(operation.request.bytes());
  *link = operation.end;
}

// A collective runs when it is at the head of every rank's queue.
bool InProcessGroup::AdvanceCollective(Clock::time_point now) {
  for (const Queue& queue : queues_) {
    if (queue.empty() || IsPointToPoint(queue.front().request.collective)) return false;
  }
  Operation& head = queues_[0].front();
  const bool departs = !head.in_flight;
  if (departs) Depart(head, now, &collective_link_);
  if (head.end > now) return departs;
  ExecuteCollective();
  return true;
}

void InProcessGroup::ExecuteCollective() {
  std::vector<const CollectiveRequest*> requests;
  for (const Queue& queue : queues_) requests.push_back(&queue.front().request);
  const absl::Status status = ExecuteTogether(requests, chunk_elements_);
  for (Queue& queue : queues_) {
    const std::shared_ptr<PendingOperation> pending = std::move(queue.front().pending);
    queue.pop_front();
    pending->Finish(status);
  }
}

// Sends of rank `from` that stand before its next collective, first ones first, each with the first
// receive of its pair that stands before the other rank's next collective.
bool InProcessGroup::AdvanceTransfers(int from, Clock::time_point now) {
  if (queues_[from].empty() || !IsPointToPoint(queues_[from].front().request.collective)) {
    return false;
  }
  bool progress = false;
  for (int to = 0; to < size_; ++to) {
    Operation* send = FindTransfer(from, Collective::kSend, to);
    if (send == nullptr) continue;
    Operation* receive = FindTransfer(to, Collective::kReceive, from);
    if (receive == nullptr) continue;
    if (!send->in_flight) {
      Depart(*send, now, &links_[{from, to}]);
      progress = true;
    }
    if (send->end > now) continue;
    FinishTransfer(from, to, send, receive);
    progress = true;
  }
  return progress;
}

InProcessGroup::Operation* InProcessGroup::FindTransfer(int rank, Collective direction, int peer) {
  for (Operation& operation : queues_[rank]) {
    if (!IsPointToPoint(operation.request.collective)) return nullptr;
    if (operation.request.collective == direction && operation.request.peer == peer) {
      return &operation;
    }
  }
  return nullptr;
}

void InProcessGroup::FinishTransfer(int from, int to, Operation* send, Operation* receive) {
  absl::Status status;
  if (send->request.bytes() != receive->request.bytes() ||
      send->request.input.dtype() != receive->request.output.dtype()) {
    status = absl::FailedPreconditionError(
        absl::StrCat("rank ", from, " sends ", send->request.bytes(), " bytes of ",
                     std::string(Name(send->request.input.dtype())), ", but rank ", to,
                     " receives ", receive->request.bytes(), " bytes of ",
                     std::string(Name(receive->request.output.dtype()))));
  } else {
    CopyTransfer(send->request.input, receive->request.output, chunk_elements_);
  }
  send->pending->Finish(status);
  receive->pending->Finish(status);
  EraseOperation(from, send);
  EraseOperation(to, receive);
}

void InProcessGroup::EraseOperation(int rank, const Operation* operation) {
  Queue& queue = queues_[rank];
  queue.erase(std::find_if(queue.begin(), queue.end(), [operation](const Operation& candidate) {
    return &candidate == operation;
  }));
}

}  // namespace fathom
