#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "core/buffer.h"
#include "parallel/data/parameter_layout.h"
#include "parallel/rank_groups.h"

namespace fathom {

// Sums gradients over the ranks that hold copies of a parameter, bucket by bucket, while backward
// still runs: those of experts over their replicas, all others over the data ranks. Counts are
// summed as they are, on every rank. One step: Begin; Ready as backward completes gradients;
// Finish.
class GradientReducer {
 public:
  struct Options {
    // Each rank gets the sums of what it owns (a reduce-scatter), the rest of its gradients being
    // undefined; else every rank gets all sums (an all-reduce).
    bool to_owners = false;
    // Gradients travel in bfloat16; sums are still taken in float32, and rounded once.
    bool bfloat16 = false;
  };

  // `gradients`: of all parameters, one vector by `layout`. They and `groups` outlive the reducer.
  static absl::StatusOr<std::unique_ptr<GradientReducer>> Create(const Options& options,
                                                                 const ParameterLayout& layout,
                                                                 const Tensor& gradients,
                                                                 RankGroups& groups,
                                                                 Device& device);

  void Begin();
  // The gradients of all parameters from this place of the parameter table on are complete on this
  // rank: starts the reduction of the buckets that they complete. Buckets of vectors and counts
  // wait for Finish, since tensor ranks have yet to add them up.
  void Ready(size_t first_parameter, Stream& stream);
  // Starts what is left and waits for all.
  absl::Status Finish(Stream& stream);

  int64_t bytes() const { return staging_buffer_.bytes(); }

 private:
  GradientReducer(const Options& options, const ParameterLayout& layout, const Tensor& gradients,
                  RankGroups& groups);

  Communicator& ReplicasOf(const ParameterBucket& bucket) {
    return groups_.replicas(bucket.of_expert);
  }
  // Whether the bucket's gradients travel in another form than they have.
  bool Staged(const ParameterBucket& bucket) const {
    return !staging_.absent() && bucket.role != UnitRole::kCounts;
  }
  void Start(size_t i, Stream& stream);

  const Options options_;
  const ParameterLayout& layout_;
  const Tensor gradients_;
  RankGroups& groups_;
  Buffer staging_buffer_;
  Tensor staging_;             // the gradients in bfloat16; absent: they travel as they are
  std::vector<bool> started_;  // of the buckets
  std::vector<Completion> pending_;
};

}  // namespace fathom
