#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "core/buffer.h"
#include "parallel/communicator.h"
#include "parallel/data/parameter_layout.h"

namespace fathom {

// Sums gradients over the data ranks, bucket by bucket, while backward still runs. One step:
// Begin; Ready as backward completes gradients; Finish.
class GradientReducer {
 public:
  struct Options {
    // Each rank gets the sums of what it owns (a reduce-scatter), the rest of its gradients being
    // undefined; else every rank gets all sums (an all-reduce).
    bool to_owners = false;
    // Gradients travel in bfloat16; sums are still taken in float32, and rounded once.
    bool bfloat16 = false;
  };

  // `gradients`: of all parameters, one vector by `layout`, which outlive the reducer.
  static absl::StatusOr<std::unique_ptr<GradientReducer>> Create(const Options& options,
                                                                 const ParameterLayout& layout,
                                                                 const Tensor& gradients,
                                                                 Communicator& data,
                                                                 Device& device);

  void Begin();
  // The gradients of all parameters from this place of the parameter table on are complete on this
  // rank: starts the reduction of the buckets that they complete. Buckets of vectors wait for
  // Finish, since tensor ranks have yet to add them up.
  void Ready(size_t first_parameter, Stream& stream);
  // Starts what is left and waits for all.
  absl::Status Finish(Stream& stream);

  int64_t bytes() const { return staging_buffer_.bytes(); }

 private:
  GradientReducer(const Options& options, const ParameterLayout& layout, const Tensor& gradients,
                  Communicator& data);

  void Start(const ParameterBucket& bucket, Stream& stream);
  // Of a bucket's elements or a part of them.
  Tensor Travelling(const ElementRange& range) const;

  const Options options_;
  const ParameterLayout& layout_;
  const Tensor gradients_;
  Communicator& data_;
  Buffer staging_buffer_;
  Tensor staging_;             // the gradients in bfloat16; absent: they travel as they are
  std::vector<bool> started_;  // of the buckets
  std::vector<Completion> pending_;
};

}  // namespace fathom
