#include "parallel/expert/expert_group.h"

#include <utility>

#include "parallel/lane_wait.h"

namespace fathom {
namespace {

std::vector<int64_t> Elements(std::vector<int64_t> rows, const Tensor& tensor) {
  const int64_t row_elements = tensor.rank() == 1 ? 1 : tensor.dim(1);
  for (int64_t& count : rows) count *= row_elements;
  return rows;
}

}  // namespace

Completion ExpertGroup::Start(const Tensor& input, const std::vector<int64_t>& send_rows,
                              const Tensor& output, const std::vector<int64_t>& receive_rows,
                              Stream& stream) {
  if (!status_.ok()) return Completion();
  return communicator_->AllToAll(input, Elements(send_rows, input), output,
                                 Elements(receive_rows, output), stream);
}

void ExpertGroup::Finish(Completion completion, Stream& stream) {
  if (!status_.ok()) return;
  status_.Update(WaitInLane(std::move(completion), stream, lanes_));
}

}  // namespace fathom
