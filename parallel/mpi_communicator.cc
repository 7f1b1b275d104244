#include "parallel/mpi_communicator.h"

#include <cstdlib>
#include <iostream>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/status.h"
#include "parallel/mpi_thread.h"

namespace fathom {
namespace {

constexpr std::chrono::seconds kGrace(2);

class MpiCommunicator final : public Communicator {
 public:
  MpiCommunicator(std::shared_ptr<MpiGroup> group, const std::string& name,
                  const CommunicatorOptions& options, std::shared_ptr<MpiThread> thread)
      : Communicator(group->rank, group->size, name, options),
        group_(std::move(group)),
        thread_(std::move(thread)) {}

  void Abort(const absl::Status& cause) override {
    thread_->StopOperations();
    if (absl::IsAborted(cause)) std::this_thread::sleep_for(kGrace);
    const std::string message(cause.message());
    const bool labelled = absl::StartsWith(message, rank_label());  // as a watchdog's are
    std::cerr << absl::StrCat(labelled ? "" : absl::StrCat(rank_label(), ": "), message, "\n")
              << std::flush;
    // The other ranks' watchdogs are about to say what they waited for, too.
    if (absl::IsDeadlineExceeded(cause)) std::this_thread::sleep_for(kGrace);
    thread_->Abort();
  }

 protected:
  void Start(CollectiveRequest request, std::shared_ptr<PendingOperation> pending) override {
    thread_->Submit(group_, std::move(request), std::move(pending));
  }

  absl::StatusOr<std::unique_ptr<Communicator>> MakeGroup(int color, int key,
                                                          const std::string& name) override {
    // MPI_Comm_split blocks the thread, and operations of other groups with it. After a barrier all
    // ranks are on their way to it, so it does not wait for any of them to get there.
    if (size() > 1) {
      FATHOM_RETURN_IF_ERROR(StartUnrecorded({.collective = Collective::kBarrier}).Wait());
    }
    auto group = std::make_shared<MpiGroup>();
    FATHOM_RETURN_IF_ERROR(thread_->Call(
        [parent = group_, child = group, color, key] {
          const int code =
              MPI_Comm_split(parent->comm, color < 0 ? MPI_UNDEFINED : color, key, &child->comm);
          if (code != MPI_SUCCESS) return MpiError(code, "MPI_Comm_split");
          if (child->comm == MPI_COMM_NULL) return absl::OkStatus();
          MPI_Comm_set_errhandler(child->comm, MPI_ERRORS_RETURN);
          MPI_Comm_rank(child->comm, &child->rank);
          MPI_Comm_size(child->comm, &child->size);
          return absl::OkStatus();
        },
        options().watchdog, absl::StrCat("the split of group ", this->name(), " into ", name)));
    if (color < 0) return std::unique_ptr<Communicator>();
    return std::make_unique<MpiCommunicator>(std::move(group), name, options(), thread_);
  }

 private:
  // MPI's handle is left to MPI_Finalize: freeing it is a collective call, which a destructor is
  // not.
  const std::shared_ptr<MpiGroup> group_;
  const std::shared_ptr<MpiThread> thread_;
};

// "rank 3", as the launcher says before MPI does.
std::string LaunchedRank() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"}) {
    if (const char* rank = std::getenv(name)) return absl::StrCat("rank ", rank);
  }
  return "a rank";
}

absl::Status ExplainStart(const absl::Status& status) {
  if (!absl::IsDeadlineExceeded(status)) return status;
  return absl::DeadlineExceededError(
      absl::StrCat(LaunchedRank(), " ", std::string(status.message()),
                   "; another rank has not started or has stopped (train.watchdog_seconds sets "
                   "the limit)"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<MpiWorld>> MpiWorld::Start(const CommunicatorOptions& options) {
  std::unique_ptr<MpiWorld> world(new MpiWorld());
  world->watchdog_ = options.watchdog;
  auto group = std::make_shared<MpiGroup>();
  ExchangeLimits limits;
  limits.chunk_elements = options.chunk_elements;
  absl::StatusOr<std::shared_ptr<MpiThread>> thread =
      MpiThread::Start(limits, group, options.watchdog);
  if (!thread.ok()) return ExplainStart(thread.status());
  world->thread_ = *std::move(thread);
  world->communicator_ =
      std::make_unique<MpiCommunicator>(std::move(group), "world", options, world->thread_);
  return world;
}

MpiWorld::~MpiWorld() = default;

absl::Status MpiWorld::Finish() {
  return thread_->Call(
      [] {
        const int code = MPI_Finalize();
        return code == MPI_SUCCESS ? absl::OkStatus() : MpiError(code, "MPI_Finalize");
      },
      watchdog_, "all ranks in MPI_Finalize");
}

bool StartedByMpiLauncher() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK", "PMI_SIZE"}) {
    if (std::getenv(name) != nullptr) return true;
  }
  return false;
}

}  // namespace fathom
