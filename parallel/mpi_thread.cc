#include "parallel/mpi_thread.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/status.h"

// For functions that return absl::Status.
#define FATHOM_RETURN_IF_MPI_ERROR(call, function)                    \
  do {                                                                \
    if (const int fathom_code = (call); fathom_code != MPI_SUCCESS) { \
      return MpiError(fathom_code, function);                         \
    }                                                                 \
  } while (false)

namespace fathom {
namespace {

constexpr int kPointToPointTag = 0;  // collectives have tags from 1

absl::Status Initialize(MpiGroup* world, int* largest_tag) {
  int provided = 0;
  FATHOM_RETURN_IF_MPI_ERROR(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided),
                             "MPI_Init_thread");
  if (provided < MPI_THREAD_FUNNELED) {
    return absl::UnavailableError("this MPI is built without MPI_THREAD_FUNNELED");
  }
  FATHOM_RETURN_IF_MPI_ERROR(MPI_Comm_dup(MPI_COMM_WORLD, &world->comm), "MPI_Comm_dup");
  FATHOM_RETURN_IF_MPI_ERROR(MPI_Comm_set_errhandler(world->comm, MPI_ERRORS_RETURN),
                             "MPI_Comm_set_errhandler");
  MPI_Comm_rank(world->comm, &world->rank);
  MPI_Comm_size(world->comm, &world->size);
  int* upper_bound = nullptr;
  int found = 0;
  MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &upper_bound, &found);
  if (found != 0) *largest_tag = *upper_bound;
  return absl::OkStatus();
}

}  // namespace

absl::Status MpiError(int code, const char* function) {
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  return absl::UnavailableError(absl::StrCat(function, " failed: ", text));
}

absl::StatusOr<std::shared_ptr<MpiThread>> MpiThread::Start(const ExchangeLimits& limits,
                                                            std::shared_ptr<MpiGroup> world,
                                                            std::chrono::milliseconds limit) {
  std::shared_ptr<MpiThread> thread(new MpiThread(limits));
  thread->thread_ = std::thread([raw = thread.get()] { raw->Run(); });
  const absl::Status status = thread->Call(
      [world, raw = thread.get()] { return Initialize(world.get(), &raw->largest_tag_); }, limit,
      "the start of MPI on all ranks");
  if (status.ok()) return thread;
  // The thread may hang in MPI: nobody can wait for its end.
  if (absl::IsDeadlineExceeded(status)) new std::shared_ptr<MpiThread>(thread);
  return status;
}

MpiThread::~MpiThread() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void MpiThread::Submit(std::shared_ptr<MpiGroup> group, CollectiveRequest request,
                       std::shared_ptr<PendingOperation> pending) {
  auto operation = std::make_unique<MpiGroup::Operation>();
  operation->request = std::move(request);
  operation->pending = std::move(pending);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    submissions_.push_back({std::move(group), std::move(operation)});
  }
  changed_.notify_all();
}

absl::Status MpiThread::Call(std::function<absl::Status()> call, std::chrono::milliseconds limit,
                             const std::string& what) {
  struct Result {
    std::mutex mutex;
    std::condition_variable finished;
    bool done = false;
    absl::Status status;
  };
  auto result = std::make_shared<Result>();
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    calls_.push_back([result, call = std::move(call)] {
      absl::Status status = call();
      const std::lock_guard<std::mutex> result_lock(result->mutex);
      result->status = std::move(status);
      result->done = true;
      result->finished.notify_all();
    });
  }
  changed_.notify_all();
  std::unique_lock<std::mutex> lock(result->mutex);
  if (!result->finished.wait_for(lock, limit, [&] { return result->done; })) {
    return absl::DeadlineExceededError(
        absl::StrCat("waited ", limit.count() / 1000.0, " s for ", what));
  }
  return result->status;
}

void MpiThread::StopOperations() {
  const auto stop = [this] {
    operations_stopped_ = true;
    return absl::OkStatus();
  };
  // A thread that hangs in MPI is in no operation, since those never block.
  Call(stop, std::chrono::seconds(1), "the end of operations").IgnoreError();
}

void MpiThread::Abort() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    calls_.push_back([] { MPI_Abort(MPI_COMM_WORLD, 1); });
  }
  changed_.notify_all();
  // MPI_Abort ends this process too. If the thread hangs in MPI, the launcher ends the job when it
  // sees this process exit.
  std::this_thread::sleep_for(std::chrono::seconds(5));
  std::_Exit(1);
}

void MpiThread::Run() {
  while (true) {
    RunCalls();
    const bool moved = !operations_stopped_ && RunOperations();
    idle_rounds_ = moved ? 0 : idle_rounds_ + 1;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (stopping_) return;
    }
    if (!moved) Rest();
  }
}

void MpiThread::RunCalls() {
  std::vector<std::function<void()>> calls;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    calls.swap(calls_);
  }
  for (const std::function<void()>& call : calls) call();
}

bool MpiThread::RunOperations() {
  bool moved = Accept();
  for (size_t i = 0; i < active_.size();) {
    moved |= Advance(active_[i].get());
    if (active_[i]->queue.empty()) {
      active_.erase(active_.begin() + i);
    } else {
      ++i;
    }
  }
  return moved;
}

bool MpiThread::Accept() {
  std::vector<Submission> submissions;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    submissions.swap(submissions_);
  }
  for (Submission& submission : submissions) {
    submission.group->queue.push_back(std::move(submission.operation));
    if (submission.group->queue.size() == 1) active_.push_back(std::move(submission.group));
  }
  return !submissions.empty();
}

// Nothing moved: leave the processor to those who compute, for longer the longer it lasts. With
// nothing in flight MPI is still looked after, since some transports finish a send that MPI has
// already declared complete only inside later calls.
void MpiThread::Rest() {
  if (idle_rounds_ < 20) {
    std::this_thread::yield();
    return;
  }
  const bool active = !active_.empty();
  // A microsecond more each time: the wait that a message then meets is a small part of the time
  // that it was waited for.
  const std::chrono::microseconds pause(active ? std::min(idle_rounds_, 1000) : 5000);
  std::unique_lock<std::mutex> lock(mutex_);
  const bool submitted = !submissions_.empty() && !operations_stopped_;
  if (stopping_ || submitted || !calls_.empty()) return;
  changed_.wait_for(lock, pause);
  lock.unlock();
  // MPI itself would move what is in flight.
  if (operations_stopped_) return;
  int initialized = 0;
  int finalized = 0;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  if (active || initialized == 0 || finalized != 0) return;
  int waiting = 0;
  MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &waiting, MPI_STATUS_IGNORE);
}

// A collective runs alone, at the head of the queue; sends and receives in a row run together.
bool MpiThread::Advance(MpiGroup* group) {
  bool moved = false;
  auto& queue = group->queue;
  for (auto operation = queue.begin(); operation != queue.end();) {
    const bool point_to_point = IsPointToPoint((*operation)->request.collective);
    if (!point_to_point && operation != queue.begin()) break;
    bool done = false;
    moved |= AdvanceOperation(group, operation->get(), &done);
    if (done) {
      operation = queue.erase(operation);
    } else {
      ++operation;
      if (!point_to_point) break;
    }
  }
  return moved;
}

bool MpiThread::AdvanceOperation(MpiGroup* group, MpiGroup::Operation* operation, bool* done) {
  absl::Status status;
  bool moved = false;
  bool arrived = false;
  if (!operation->planned) {
    Plan(group, operation);
    status = Post(group, operation);
    moved = true;
  }
  if (status.ok()) status = TestRound(operation, &arrived);
  while (status.ok() && arrived) {
    moved = true;
    const std::function<void()>& then = operation->rounds[operation->round].then;
    if (then) then();
    if (++operation->round == operation->rounds.size()) break;
    status = Post(group, operation);
    if (status.ok()) status = TestRound(operation, &arrived);
  }
  *done = !status.ok() || operation->round == operation->rounds.size();
  if (*done) {
    if (!status.ok()) {
      status = absl::Status(status.code(), absl::StrCat(operation->pending->ToString(), ": ",
                                                        std::string(status.message())));
    }
    operation->pending->Finish(status);
  }
  return moved || *done;
}

void MpiThread::Plan(MpiGroup* group, MpiGroup::Operation* operation) {
  operation->planned = true;
  operation->rounds = PlanExchange(operation->request, group->rank, group->size, limits_);
  operation->tag = IsPointToPoint(operation->request.collective)
                       ? kPointToPointTag
                       : static_cast<int>(1 + group->collectives++ % largest_tag_);
}

absl::Status MpiThread::Post(MpiGroup* group, MpiGroup::Operation* operation) {
  const ExchangeRound& round = operation->rounds[operation->round];
  operation->requests.clear();
  operation->requests.reserve(round.receives.size() + round.sends.size());
  for (const Message& message : round.receives) {
    operation->requests.push_back(MPI_REQUEST_NULL);
    FATHOM_RETURN_IF_MPI_ERROR(
        MPI_Irecv(message.data, static_cast<int>(message.bytes), MPI_BYTE, message.peer,
                  operation->tag, group->comm, &operation->requests.back()),
        "MPI_Irecv");
  }
  for (const Message& message : round.sends) {
    operation->requests.push_back(MPI_REQUEST_NULL);
    FATHOM_RETURN_IF_MPI_ERROR(
        MPI_Isend(message.data, static_cast<int>(message.bytes), MPI_BYTE, message.peer,
                  operation->tag, group->comm, &operation->requests.back()),
        "MPI_Isend");
  }
  return absl::OkStatus();
}

absl::Status MpiThread::TestRound(MpiGroup::Operation* operation, bool* arrived) {
  const ExchangeRound& round = operation->rounds[operation->round];
  std::vector<MPI_Status> statuses(operation->requests.size());
  int flag = 0;
  const int code = MPI_Testall(static_cast<int>(operation->requests.size()),
                               operation->requests.data(), &flag, statuses.data());
  if (code == MPI_ERR_IN_STATUS) {
    for (const MPI_Status& status : statuses) {
      if (status.MPI_ERROR != MPI_SUCCESS && status.MPI_ERROR != MPI_ERR_PENDING) {
        return MpiError(status.MPI_ERROR, "a message");
      }
    }
  }
  FATHOM_RETURN_IF_MPI_ERROR(code, "MPI_Testall");
  *arrived = flag != 0;
  for (size_t i = 0; *arrived && i < round.receives.size(); ++i) {
    int bytes = 0;
    MPI_Get_count(&statuses[i], MPI_BYTE, &bytes);
    if (bytes != round.receives[i].bytes) {
      return absl::FailedPreconditionError(absl::StrCat("rank ", round.receives[i].peer, " sent ",
                                                        bytes, " bytes where ",
                                                        round.receives[i].bytes, " were expected"));
    }
  }
  return absl::OkStatus();
}

}  // namespace fathom
