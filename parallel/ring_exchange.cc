#include "parallel/ring_exchange.h"

#include <cstdint>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/buffer.h"
#include "core/check.h"
#include "core/status.h"
#include "parallel/keep_buffer.h"

namespace fathom {
namespace {

using Clock = std::chrono::steady_clock;

std::string OnHost(int rank, const std::vector<std::string>& hosts) {
  return absl::StrCat("rank ", rank, " on ",
                      hosts[rank].empty() ? "an unknown host" : absl::StrCat("host ", hosts[rank]));
}

// DeadlineExceeded when the operation is not done by then. It is polled, since its own watchdog is
// made for the longest step of the run, not for its start.
absl::Status WaitUntil(Completion& operation, Clock::time_point deadline) {
  while (!operation.done()) {
    if (Clock::now() >= deadline) {
      return absl::DeadlineExceededError(
          "it has not started or has ended, or the network between the two is blocked");
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return operation.Wait();
}

absl::Status Explain(const absl::Status& status, const std::string& self, const std::string& verb,
                     const std::string& other, std::chrono::milliseconds timeout) {
  if (status.ok()) return status;
  const std::string within =
      absl::IsDeadlineExceeded(status)
          ? absl::StrCat(" within ", static_cast<double>(timeout.count()) / 1000, " s")
          : "";
  return absl::Status(status.code(), absl::StrCat(self, " did not ", verb, " ", other, within, ": ",
                                                  std::string(status.message())));
}

}  // namespace

absl::Status ExchangeAlongRing(Communicator& world, Stream& stream,
                               const std::vector<std::string>& hosts,
                               std::chrono::milliseconds timeout) {
  FATHOM_CHECK_EQ(hosts.size(), world.size());
  if (world.size() == 1 || stream.device().kind() == DeviceKind::kDry) return absl::OkStatus();
  const int32_t own = world.rank();
  const int next = (world.rank() + 1) % world.size();
  const int previous = (world.rank() + world.size() - 1) % world.size();
  FATHOM_ASSIGN_OR_RETURN(Buffer out, Buffer::Allocate(stream.device(), sizeof(int32_t)));
  FATHOM_ASSIGN_OR_RETURN(Buffer in, Buffer::Allocate(stream.device(), sizeof(int32_t)));
  const Tensor outgoing = out.View(0, DType::kInt32, {1});
  const Tensor incoming = in.View(0, DType::kInt32, {1});
  stream.CopyToDevice(&own, outgoing);
  FATHOM_RETURN_IF_ERROR(stream.Synchronize());

  // If all ranks began by sending, none might get to receiving.
  Completion sent;
  Completion received;
  if (world.rank() % 2 == 0) {
    sent = world.Send(outgoing, next, stream);
    received = world.Receive(incoming, previous, stream);
  } else {
    received = world.Receive(incoming, previous, stream);
    sent = world.Send(outgoing, next, stream);
  }

  const Clock::time_point deadline = Clock::now() + timeout;
  const std::string self = OnHost(world.rank(), hosts);
  absl::Status status =
      Explain(WaitUntil(received, deadline), self, "hear from", OnHost(previous, hosts), timeout);
  if (status.ok()) {
    status =
        Explain(WaitUntil(sent, deadline), self, "get through to", OnHost(next, hosts), timeout);
  }
  if (!status.ok()) {
    KeepForEver(std::move(out));
    KeepForEver(std::move(in));
    return status;
  }
  int32_t heard = -1;
  stream.CopyToHost(incoming, &heard);
  FATHOM_RETURN_IF_ERROR(stream.Synchronize());
  if (heard == previous) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(self, " heard the number ", heard, " from ",
                                          OnHost(previous, hosts),
                                          ": the message was changed on its way"));
}

}  // namespace fathom
