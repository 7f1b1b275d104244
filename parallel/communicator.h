#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/device.h"
#include "parallel/communication_log.h"
#include "parallel/completion.h"

namespace fathom {

struct CommunicatorOptions {
  // How long Completion::Wait blocks before it gives up.
  std::chrono::milliseconds watchdog{60000};
  // The most elements that one transfer carries; larger operands travel in several. Results do not
  // depend on it. At least 1.
  int64_t chunk_elements = int64_t{1} << 27;
};

// One rank's member of a group of ranks. What stands above this interface does not know how the
// ranks are connected.
//
// Every operation is enqueued and returns at once; Completion::Wait says when it is done.
// - It starts after what has been launched on `stream` before the call.
// - All ranks of a group issue the same operations in the same order, sends and receives excepted.
//   Operations of one communicator run one after another in the order of issue, so that the next
//   one may read what the last one wrote, without a wait between them. Operations of different
//   communicators are not ordered. Only sends and receives issued in a row may run together.
// - Sends and receives are matched by pair, in the order of issue. A send may last until its
// receive
//   is issued, and a receive issued before it may hold it up: the order of issue must be right for
//   both.
// - Sums are taken in the order of the ranks, bfloat16 in float32 with one rounding at the end: the
//   same bits on every rank, in every run, and with every chunk size. int32 and int64 wrap.
// - dtypes: all of core/dtype.h. Operands are contiguous, and they do not overlap, except that an
//   input may be its own rank's slice of the output (all-gather), and the output may be its own
//   rank's slice of the input (reduce-scatter).
// - On a dry stream nothing runs, but calls are recorded.
//
// Used by one thread at a time; different communicators by different threads. It must outlive its
// operations.
class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  const std::string& name() const { return *name_; }

  // x = the reduction over all ranks' x, on every rank.
  Completion AllReduce(const Tensor& x, ReduceOp op, Stream& stream);

  // The reduction of all ranks' `input` is cut into one slice per rank, in rank order, and this
  // rank's slice is `output`. Slices have counts[rank] elements (zeros are fine: with all in one
  // slice it is a reduction to one rank); empty `counts`: equal slices.
  Completion ReduceScatter(const Tensor& input, const Tensor& output, ReduceOp op, Stream& stream,
                           std::vector<int64_t> counts = {});

  // `output` is all ranks' `input` in rank order, counts[rank] elements each; empty: equal.
  Completion AllGather(const Tensor& input, const Tensor& output, Stream& stream,
                       std::vector<int64_t> counts = {});

  // Cuts `input` into send_counts[rank] elements for each rank; `output` receives
  // receive_counts[rank] elements from each, in rank order.
  Completion AllToAll(const Tensor& input, std::vector<int64_t> send_counts, const Tensor& output,
                      std::vector<int64_t> receive_counts, Stream& stream);

  // x = the root's x.
  Completion Broadcast(const Tensor& x, int root, Stream& stream);

  // To and from another rank of the group, which calls the other with as many bytes.
  Completion Send(const Tensor& x, int to, Stream& stream);
  Completion Receive(const Tensor& x, int from, Stream& stream);

  // Done on each rank after all ranks have called it.
  Completion Barrier(Stream& stream);

  // Called by all ranks of the group; blocks. Ranks that give the same `color` form a new group
  // called `name`, ranked by (key, rank); a negative color joins none and gets null. The log, the
  // options and the rank's label are inherited.
  absl::StatusOr<std::unique_ptr<Communicator>> Split(int color, int key, const std::string& name);

  // Ends the job on all ranks because of `cause`, which is printed with the rank's label. Where
  // ranks are processes this does not return. Where they are threads, all pending and later
  // operations of all ranks fail with Aborted, naming the first cause and its rank.
  virtual void Abort(const absl::Status& cause) = 0;

  // How messages name this rank of the job: "rank 3 (pipeline 0, data 1, tensor 1)".
  void set_rank_label(const std::string& label);
  const std::string& rank_label() const { return *rank_label_; }

  // Records all further operations of this communicator and those split from it; null: none.
  void set_log(std::shared_ptr<CommunicationLog> log) { log_ = std::move(log); }

 protected:
  Communicator(int rank, int size, const std::string& name, const CommunicatorOptions& options);

  // Executes `request`, which has been checked, and finishes `pending`, now or later.
  virtual void Start(CollectiveRequest request, std::shared_ptr<PendingOperation> pending) = 0;
  virtual absl::StatusOr<std::unique_ptr<Communicator>> MakeGroup(int color, int key,
                                                                  const std::string& name) = 0;
  // Starts an operation that is not recorded.
  Completion StartUnrecorded(CollectiveRequest request);
  const CommunicatorOptions& options() const { return options_; }

 private:
  Completion Enqueue(CollectiveRequest request, Stream& stream);
  absl::Status Check(const CollectiveRequest& request) const;
  absl::Status CheckCounts(const CollectiveRequest& request) const;
  std::shared_ptr<PendingOperation> NewPending(const CollectiveRequest& request,
                                               std::shared_ptr<CommunicationLog> log);

  const int rank_;
  const int size_;
  const CommunicatorOptions options_;
  const std::shared_ptr<const std::string> name_;
  std::shared_ptr<const std::string> rank_label_;
  std::shared_ptr<CommunicationLog> log_;
  int64_t issued_ = 0;
};

}  // namespace fathom
