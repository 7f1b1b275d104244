#include "parallel/communicator.h"

#include <cstring>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/check.h"
#include "core/status.h"

namespace fathom {
namespace {

bool HasInput(Collective collective) {
  return collective != Collective::kReceive && collective != Collective::kBarrier;
}

bool HasOutput(Collective collective) {
  return collective != Collective::kSend && collective != Collective::kBarrier;
}

absl::Status CheckOperand(std::string_view which, const Tensor& x) {
  if (x.absent() && x.elements() > 0) {
    return absl::InvalidArgumentError(absl::StrCat("the ", std::string(which), " is absent"));
  }
  if (!x.contiguous()) {
    return absl::InvalidArgumentError(absl::StrCat("the ", std::string(which), " ",
                                                   x.shape().ToString(), " with row stride ",
                                                   x.row_stride(), " is not contiguous"));
  }
  return absl::OkStatus();
}

absl::Status CheckList(std::string_view which, const std::vector<int64_t>& counts, int size,
                       int64_t elements) {
  bool good = static_cast<int>(counts.size()) == size;
  int64_t sum = 0;
  for (const int64_t count : counts) {
    good = good && count >= 0;
    sum += count;
  }
  if (good && sum == elements) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "the ", std::string(which), " are [", absl::StrJoin(counts, ", "), "], but they must be ",
      size, " counts of 0 or more that add up to the tensor's ", elements, " elements"));
}

// A group of one: the operation is a copy.
void RunAlone(const CollectiveRequest& request) {
  if (!HasInput(request.collective) || !HasOutput(request.collective)) return;
  if (request.input.raw() == request.output.raw() || request.input.bytes() == 0) return;
  std::memcpy(request.output.raw(), request.input.raw(), request.input.bytes());
}

}  // namespace

Communicator::Communicator(int rank, int size, const std::string& name,
                           const CommunicatorOptions& options)
    : rank_(rank),
      size_(size),
      options_(options),
      name_(std::make_shared<const std::string>(name)),
      rank_label_(std::make_shared<const std::string>(absl::StrCat("rank ", rank))) {
  FATHOM_CHECK(size >= 1 && rank >= 0 && rank < size) << "rank " << rank << " of " << size;
  FATHOM_CHECK(options.chunk_elements >= 1);
}

void Communicator::set_rank_label(const std::string& label) {
  rank_label_ = std::make_shared<const std::string>(label);
}

Completion Communicator::AllReduce(const Tensor& x, ReduceOp op, Stream& stream) {
  return Enqueue({.collective = Collective::kAllReduce, .op = op, .input = x, .output = x}, stream);
}

Completion Communicator::ReduceScatter(const Tensor& input, const Tensor& output, ReduceOp op,
                                       Stream& stream, std::vector<int64_t> counts) {
  if (counts.empty()) counts.assign(size_, output.elements());
  return Enqueue({.collective = Collective::kReduceScatter,
                  .op = op,
                  .input = input,
                  .output = output,
                  .counts = std::move(counts)},
                 stream);
}

Completion Communicator::AllGather(const Tensor& input, const Tensor& output, Stream& stream,
                                   std::vector<int64_t> counts) {
  if (counts.empty()) counts.assign(size_, input.elements());
  return Enqueue({.collective = Collective::kAllGather,
                  .input = input,
                  .output = output,
                  .counts = std::move(counts)},
                 stream);
}

Completion Communicator::AllToAll(const Tensor& input, std::vector<int64_t> send_counts,
                                  const Tensor& output, std::vector<int64_t> receive_counts,
                                  Stream& stream) {
  return Enqueue({.collective = Collective::kAllToAll,
                  .input = input,
                  .output = output,
                  .counts = std::move(send_counts),
                  .receive_counts = std::move(receive_counts)},
                 stream);
}

Completion Communicator::Broadcast(const Tensor& x, int root, Stream& stream) {
  return Enqueue({.collective = Collective::kBroadcast, .input = x, .output = x, .peer = root},
                 stream);
}

Completion Communicator::Send(const Tensor& x, int to, Stream& stream) {
  return Enqueue({.collective = Collective::kSend, .input = x, .peer = to}, stream);
}

Completion Communicator::Receive(const Tensor& x, int from, Stream& stream) {
  return Enqueue({.collective = Collective::kReceive, .output = x, .peer = from}, stream);
}

Completion Communicator::Barrier(Stream& stream) {
  return Enqueue({.collective = Collective::kBarrier}, stream);
}

absl::StatusOr<std::unique_ptr<Communicator>> Communicator::Split(int color, int key,
                                                                  const std::string& name) {
  FATHOM_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> group, MakeGroup(color, key, name));
  if (group != nullptr) {
    group->rank_label_ = rank_label_;
    group->log_ = log_;
  }
  return group;
}

Completion Communicator::StartUnrecorded(CollectiveRequest request) {
  std::shared_ptr<PendingOperation> pending = NewPending(request, nullptr);
  Start(std::move(request), pending);
  return Completion(std::move(pending));
}

Completion Communicator::Enqueue(CollectiveRequest request, Stream& stream) {
  if (absl::Status status = Check(request); !status.ok()) {
    return Completion(absl::InvalidArgumentError(
        absl::StrCat(*rank_label_, ", ", std::string(Name(request.collective)), " of group ",
                     *name_, ": ", std::string(status.message()))));
  }
  const bool dry = stream.device().kind() == DeviceKind::kDry;
  if (size_ == 1) {
    if (!dry) RunAlone(request);
    return Completion();
  }
  std::shared_ptr<PendingOperation> pending = NewPending(request, log_);
  if (dry) {
    pending->Finish(absl::OkStatus());
  } else {
    Start(std::move(request), pending);
  }
  return Completion(std::move(pending));
}

std::shared_ptr<PendingOperation> Communicator::NewPending(const CollectiveRequest& request,
                                                           std::shared_ptr<CommunicationLog> log) {
  PendingOperation::Description description{.collective = request.collective,
                                            .order = issued_++,
                                            .bytes = request.bytes(),
                                            .peer = request.peer,
                                            .rank = rank_,
                                            .group_size = size_,
                                            .group = name_,
                                            .rank_label = rank_label_,
                                            .watchdog = options_.watchdog};
  auto pending = std::make_shared<PendingOperation>(std::move(description), log);
  if (log != nullptr) {
    pending->ticket_ = log->Add({.collective = request.collective,
                                 .group = *name_,
                                 .group_size = size_,
                                 .peer = request.peer,
                                 .bytes = request.bytes()});
  }
  return pending;
}

absl::Status Communicator::Check(const CollectiveRequest& request) const {
  if (HasInput(request.collective)) {
    FATHOM_RETURN_IF_ERROR(CheckOperand("input", request.input));
  }
  if (HasOutput(request.collective)) {
    FATHOM_RETURN_IF_ERROR(CheckOperand("output", request.output));
  }
  if (HasInput(request.collective) && HasOutput(request.collective) &&
      request.input.dtype() != request.output.dtype()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the input is ", std::string(Name(request.input.dtype())),
                     ", but the output is ", std::string(Name(request.output.dtype()))));
  }
  if (request.collective == Collective::kBroadcast || IsPointToPoint(request.collective)) {
    if (request.peer < 0 || request.peer >= size_) {
      return absl::InvalidArgumentError(
          absl::StrCat("rank ", request.peer, " is not one of 0 to ", size_ - 1));
    }
    if (IsPointToPoint(request.collective) && request.peer == rank_) {
      return absl::InvalidArgumentError(
          absl::StrCat("rank ", request.peer, " is this rank, but it must be another one"));
    }
  }
  return CheckCounts(request);
}

absl::Status Communicator::CheckCounts(const CollectiveRequest& request) const {
  const int64_t in = request.input.elements();
  const int64_t out = request.output.elements();
  const auto check_own = [&](std::string_view which, int64_t elements) {
    if (request.counts[rank_] == elements) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("the ", std::string(which), " has ", elements,
                                                   " elements, but counts[", rank_, "] is ",
                                                   request.counts[rank_]));
  };
  switch (request.collective) {
    case Collective::kReduceScatter:
      FATHOM_RETURN_IF_ERROR(CheckList("counts of the input's slices", request.counts, size_, in));
      return check_own("output", out);
    case Collective::kAllGather:
      FATHOM_RETURN_IF_ERROR(
          CheckList("counts of the output's slices", request.counts, size_, out));
      return check_own("input", in);
    case Collective::kAllToAll:
      FATHOM_RETURN_IF_ERROR(CheckList("counts to send", request.counts, size_, in));
      FATHOM_RETURN_IF_ERROR(CheckList("counts to receive", request.receive_counts, size_, out));
      if (request.counts[rank_] != request.receive_counts[rank_]) {
        return absl::InvalidArgumentError(
            absl::StrCat("this rank sends itself ", request.counts[rank_],
                         " elements, but receives ", request.receive_counts[rank_]));
      }
      return absl::OkStatus();
    default:
      return absl::OkStatus();
  }
}

}  // namespace fathom
