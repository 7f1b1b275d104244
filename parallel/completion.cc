#include "parallel/completion.h"

#include "absl/strings/str_cat.h"

namespace fathom {
namespace {

// absl::string_view is not std::string_view here.
std::string Text(std::string_view text) { return std::string(text); }

}  // namespace

absl::Status DetachedCopy(const absl::Status& status) {
  return status.ok() ? absl::OkStatus() : absl::Status(status.code(), status.message());
}

PendingOperation::PendingOperation(Description description, std::shared_ptr<CommunicationLog> log)
    : description_(std::move(description)), log_(std::move(log)) {}

void PendingOperation::Finish(const absl::Status& status) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (done_) return;
    if (log_ != nullptr) log_->Finish(ticket_);
    status_ = DetachedCopy(status);
    done_ = true;
  }
  finished_.notify_all();
}

bool PendingOperation::done() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return done_;
}

absl::Status PendingOperation::Wait() {
  std::unique_lock<std::mutex> lock(mutex_);
  if (finished_.wait_for(lock, description_.watchdog, [this] { return done_; })) {
    return DetachedCopy(status_);
  }
  return absl::DeadlineExceededError(
      absl::StrCat(*description_.rank_label, " waited ",
                   static_cast<double>(description_.watchdog.count()) / 1000, " s for ", ToString(),
                   "; another rank is slow, has stopped or issued its operations in another "
                   "order (train.watchdog_seconds sets the limit)"));
}

std::string PendingOperation::ToString() const {
  std::string peer;
  if (description_.collective == Collective::kSend) {
    peer = absl::StrCat(" to rank ", description_.peer);
  } else if (description_.collective == Collective::kReceive) {
    peer = absl::StrCat(" from rank ", description_.peer);
  } else if (description_.collective == Collective::kBroadcast) {
    peer = absl::StrCat(" from root ", description_.peer);
  }
  return absl::StrCat(Text(Name(description_.collective)), " number ", description_.order, peer,
                      " (", description_.bytes, " bytes) of group ", *description_.group,
                      ", as rank ", description_.rank, " of ", description_.group_size);
}

absl::Status Completion::Wait() { return pending_ == nullptr ? status_ : pending_->Wait(); }

absl::Status Completion::Wait(Stream& stream) {
  // CPU streams run inline, and dry ones run nothing: both need the host to wait.
  (void)stream;
  return Wait();
}

}  // namespace fathom
