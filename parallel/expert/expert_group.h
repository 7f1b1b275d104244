#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "core/lane.h"
#include "parallel/communicator.h"
#include "parallel/element_range.h"

namespace fathom {

// The ranks that share out the experts of a layer, as layer code sees them: rank r of R holds
// experts E r/R to E (r+1)/R - 1. Rows travel to the ranks of their experts and back by two
// exchanges in opposite directions.
//
// Start puts an exchange on the communicator's stream; the caller launches what does not need its
// result, and Finish then yields to the other lanes and waits. As in TensorGroup, the first error
// is kept in status(), after which nothing travels any more.
class ExpertGroup {
 public:
  // One rank.
  ExpertGroup() = default;
  // `over_tensor`: see ExpertSizes. `lanes` may be null: there is one.
  ExpertGroup(Communicator& communicator, bool over_tensor, Lanes* lanes)
      : communicator_(&communicator), over_tensor_(over_tensor), lanes_(lanes) {}

  int rank() const { return communicator_ == nullptr ? 0 : communicator_->rank(); }
  int size() const { return communicator_ == nullptr ? 1 : communicator_->size(); }
  bool over_tensor() const { return over_tensor_; }

  // This rank's experts of `experts`, which the ranks divide.
  ElementRange PartOf(int64_t experts) const { return FlatShard(experts, size(), rank()); }

  // output = from each rank in order receive_rows rows [d] that it sent to this one; input: rows
  // for each rank in order, send_rows of them. Not called on one rank.
  Completion Start(const Tensor& input, const std::vector<int64_t>& send_rows, const Tensor& output,
                   const std::vector<int64_t>& receive_rows, Stream& stream);
  void Finish(Completion completion, Stream& stream);

  const absl::Status& status() const { return status_; }
  // Of the device, when layer code has waited for it.
  void Update(const absl::Status& status) { status_.Update(status); }

 private:
  Communicator* communicator_ = nullptr;
  bool over_tensor_ = false;
  Lanes* lanes_ = nullptr;
  absl::Status status_;
};

}  // namespace fathom
