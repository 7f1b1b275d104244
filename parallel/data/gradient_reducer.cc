#include "parallel/data/gradient_reducer.h"

#include "core/status.h"
#include "kernels/elementwise.h"

namespace fathom {

GradientReducer::GradientReducer(const Options& options, const ParameterLayout& layout,
                                 const Tensor& gradients, RankGroups& groups)
    : options_(options),
      layout_(layout),
      gradients_(gradients),
      groups_(groups),
      started_(layout.buckets.size(), false) {}

absl::StatusOr<std::unique_ptr<GradientReducer>> GradientReducer::Create(
    const Options& options, const ParameterLayout& layout, const Tensor& gradients,
    RankGroups& groups, Device& device) {
  std::unique_ptr<GradientReducer> reducer(new GradientReducer(options, layout, gradients, groups));
  const bool travels = groups.data().size() > 1 || groups.expert_replicas().size() > 1;
  if (options.bfloat16 && travels) {
    FATHOM_ASSIGN_OR_RETURN(reducer->staging_buffer_,
                            Buffer::Allocate(device, layout.elements * SizeOf(DType::kBFloat16)));
    reducer->staging_ = reducer->staging_buffer_.View(0, DType::kBFloat16, Shape{layout.elements});
  }
  return reducer;
}

void GradientReducer::Begin() {
  started_.assign(started_.size(), false);
  pending_.clear();
}

void GradientReducer::Start(size_t i, Stream& stream) {
  started_[i] = true;
  const ParameterBucket& bucket = layout_.buckets[i];
  Communicator& replicas = ReplicasOf(bucket);
  if (replicas.size() == 1) return;
  const auto rows = [](const Tensor& tensor, const ElementRange& range) {
    return tensor.Rows(range.begin, range.end);
  };
  const Tensor& travelling = Staged(bucket) ? staging_ : gradients_;
  const Tensor all = rows(travelling, bucket.elements);
  if (Staged(bucket)) {
    Launch(stream, Copy{.x = rows(gradients_, bucket.elements), .y = all});
  }
  const bool to_owner = options_.to_owners && bucket.role != UnitRole::kCounts;
  pending_.push_back(
      to_owner ? replicas.ReduceScatter(all, rows(travelling, bucket.OwnedBy(replicas.rank())),
                                        ReduceOp::kSum, stream, bucket.counts)
               : replicas.AllReduce(all, ReduceOp::kSum, stream));
}

void GradientReducer::Ready(size_t first_parameter, Stream& stream) {
  for (size_t i = 0; i < layout_.buckets.size(); ++i) {
    const ParameterBucket& bucket = layout_.buckets[i];
    const bool waits = bucket.role == UnitRole::kVectors || bucket.role == UnitRole::kCounts;
    if (started_[i] || waits || bucket.first_parameter < first_parameter) continue;
    Start(i, stream);
  }
}

absl::Status GradientReducer::Finish(Stream& stream) {
  for (size_t i = 0; i < layout_.buckets.size(); ++i) {
    if (!started_[i]) Start(i, stream);
  }
  for (Completion& completion : pending_) FATHOM_RETURN_IF_ERROR(completion.Wait(stream));
  pending_.clear();
  for (const ParameterBucket& bucket : layout_.buckets) {
    if (!Staged(bucket) || ReplicasOf(bucket).size() == 1) continue;
    const ElementRange& range = bucket.elements;
    Launch(stream, Copy{.x = staging_.Rows(range.begin, range.end),
                        .y = gradients_.Rows(range.begin, range.end)});
  }
  return absl::OkStatus();
}

}  // namespace fathom
