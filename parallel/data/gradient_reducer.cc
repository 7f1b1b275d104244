#include "parallel/data/gradient_reducer.h"

#include "core/status.h"
#include "kernels/elementwise.h"

namespace fathom {

GradientReducer::GradientReducer(const Options& options, const ParameterLayout& layout,
                                 const Tensor& gradients, Communicator& data)
    : options_(options),
      layout_(layout),
      gradients_(gradients),
      data_(data),
      started_(layout.buckets.size(), false) {}

absl::StatusOr<std::unique_ptr<GradientReducer>> GradientReducer::Create(
    const Options& options, const ParameterLayout& layout, const Tensor& gradients,
    Communicator& data, Device& device) {
  std::unique_ptr<GradientReducer> reducer(new GradientReducer(options, layout, gradients, data));
  if (options.bfloat16 && data.size() > 1) {
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

Tensor GradientReducer::Travelling(const ElementRange& range) const {
  return (staging_.absent() ? gradients_ : staging_).Rows(range.begin, range.end);
}

void GradientReducer::Start(const ParameterBucket& bucket, Stream& stream) {
  const Tensor all = Travelling(bucket.elements);
  if (!staging_.absent()) {
    Launch(stream,
           Copy{.x = gradients_.Rows(bucket.elements.begin, bucket.elements.end), .y = all});
  }
  pending_.push_back(options_.to_owners
                         ? data_.ReduceScatter(all, Travelling(bucket.OwnedBy(data_.rank())),
                                               ReduceOp::kSum, stream, bucket.counts)
                         : data_.AllReduce(all, ReduceOp::kSum, stream));
}

void GradientReducer::Ready(size_t first_parameter, Stream& stream) {
  if (data_.size() == 1) return;
  for (size_t i = 0; i < layout_.buckets.size(); ++i) {
    const ParameterBucket& bucket = layout_.buckets[i];
    if (started_[i] || bucket.role == UnitRole::kVectors) continue;
    if (bucket.first_parameter < first_parameter) continue;
    started_[i] = true;
    Start(bucket, stream);
  }
}

absl::Status GradientReducer::Finish(Stream& stream) {
  if (data_.size() == 1) return absl::OkStatus();
  for (size_t i = 0; i < layout_.buckets.size(); ++i) {
    if (!started_[i]) Start(layout_.buckets[i], stream);
  }
  for (Completion& completion : pending_) FATHOM_RETURN_IF_ERROR(completion.Wait(stream));
  pending_.clear();
  if (!staging_.absent()) Launch(stream, Copy{.x = staging_, .y = gradients_});
  return absl::OkStatus();
}

}  // namespace fathom
