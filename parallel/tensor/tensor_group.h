#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "core/lane.h"
#include "parallel/communicator.h"
#include "parallel/element_range.h"

namespace fathom {

// The ranks that share each matrix of a layer, as layer code sees them (Shoeybi et al.,
// "Megatron-LM", 2019, section 3). Matrices come in pairs: the first is split by rows, so that its
// input is whole on every rank, the second by columns, so that its outputs must be summed over the
// ranks. The sum of the one direction is the identity of the other:
//   forward  x -> column part -> row part -> sum
//   backward sum <- column part <- row part <- dx
// With sequence parallelism (Korthikanti et al., "Reducing activation recomputation", 2022, section
// 4.2.2) the rows of the residual are split over the ranks, too: a whole input is gathered, and a
// sum is left scattered.
//
// An operation is put on the communicator's stream and yields to the other lanes; when it returns,
// its result is in place for what is launched next. Groups of one return at once. The first error
// is kept in status(), after which all operations do nothing: layer code goes on to its end, and
// whoever runs it looks at status() then.
class TensorGroup {
 public:
  // One rank.
  TensorGroup() = default;
  // `sequence`: rows of the residual are split over the ranks. `lanes` may be null: there is one.
  TensorGroup(Communicator& communicator, bool sequence, Lanes* lanes)
      : communicator_(&communicator),
        sequence_(sequence && communicator.size() > 1),
        lanes_(lanes) {}

  int rank() const { return communicator_ == nullptr ? 0 : communicator_->rank(); }
  int size() const { return communicator_ == nullptr ? 1 : communicator_->size(); }
  bool sequence() const { return sequence_; }

  // This rank's part of `total` things that stand in a row: the first total % size() ranks have one
  // more.
  ElementRange PartOf(int64_t total) const { return FlatShard(total, size(), rank()); }

  // x = the sum over the ranks, or the maximum.
  void AllReduce(const Tensor& x, Stream& stream, ReduceOp op = ReduceOp::kSum);
  // all [n, ...] = the ranks' rows PartOf(n) one after the other.
  void AllGatherRows(const Tensor& mine, const Tensor& all, Stream& stream);
  // mine = rows PartOf(n) of the sum over the ranks of all [n, ...].
  void ReduceScatterRows(const Tensor& all, const Tensor& mine, Stream& stream);

  const absl::Status& status() const { return status_; }

 private:
  // Elements that each rank has of `all` when its rows are split.
  std::vector<int64_t> Counts(const Tensor& all) const;
  // Yields to the other lanes, then waits.
  void Finish(Completion completion, Stream& stream);

  Communicator* communicator_ = nullptr;
  bool sequence_ = false;
  Lanes* lanes_ = nullptr;
  absl::Status status_;
};

}  // namespace fathom
