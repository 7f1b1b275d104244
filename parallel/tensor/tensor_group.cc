#include "parallel/tensor/tensor_group.h"

#include <utility>

#include "parallel/counts.h"
#include "parallel/lane_wait.h"

namespace fathom {

std::vector<int64_t> TensorGroup::Counts(const Tensor& all) const {
  const int64_t rows = all.dim(0);
  std::vector<int64_t> counts = EvenCounts(rows, size());
  const int64_t row_elements = rows == 0 ? 0 : all.elements() / rows;
  for (int64_t& count : counts) count *= row_elements;
  return counts;
}

void TensorGroup::Finish(Completion completion, Stream& stream) {
  status_.Update(WaitInLane(std::move(completion), stream, lanes_));
}

void TensorGroup::AllReduce(const Tensor& x, Stream& stream, ReduceOp op) {
  if (size() == 1 || !status_.ok()) return;
  Finish(communicator_->AllReduce(x, op, stream), stream);
}

void TensorGroup::AllGatherRows(const Tensor& mine, const Tensor& all, Stream& stream) {
  if (!status_.ok()) return;
  Finish(communicator_->AllGather(mine, all, stream, Counts(all)), stream);
}

void TensorGroup::ReduceScatterRows(const Tensor& all, const Tensor& mine, Stream& stream) {
  if (!status_.ok()) return;
  Finish(communicator_->ReduceScatter(all, mine, ReduceOp::kSum, stream, Counts(all)), stream);
}

}  // namespace fathom
