#include "parallel/pipeline/schedule.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "core/status.h"
#include "parallel/pipeline/simulate.h"

namespace fathom {
namespace {

PipelineOperation Forward(int micro_batch, int chunk = 0) {
  return {PipelineAction::kForward, micro_batch, chunk, -1};
}

PipelineOperation Backward(int micro_batch, int chunk = 0) {
  return {PipelineAction::kBackward, micro_batch, chunk, -1};
}

PipelineList GPipe(const PipelineShape& shape) {
  PipelineList list;
  for (int m = 0; m < shape.micro_batches; ++m) list.push_back(Forward(m));
  for (int m = 0; m < shape.micro_batches; ++m) list.push_back(Backward(m));
  return list;
}

// `warm_up` forwards, then pairs of a forward and a backward, then the backwards that are left, of
// `total` each; forward(i) and backward(i) are the i-th of their kind.
template <class ForwardAt, class BackwardAt>
PipelineList WarmUpThenPairs(int total, int warm_up, ForwardAt forward, BackwardAt backward) {
  warm_up = std::min(warm_up, total);
  PipelineList list;
  for (int i = 0; i < warm_up; ++i) list.push_back(forward(i));
  for (int i = warm_up; i < total; ++i) {
    list.push_back(forward(i));
    list.push_back(backward(i - warm_up));
  }
  for (int i = total - warm_up; i < total; ++i) list.push_back(backward(i));
  return list;
}

PipelineList OneForwardOneBackward(const PipelineShape& shape, int stage) {
  return WarmUpThenPairs(
      shape.micro_batches, shape.stages - stage - 1, [](int i) { return Forward(i); },
      [](int i) { return Backward(i); });
}

// Micro-batches go in groups of `stages`; a group passes through chunk 0, then chunk 1, and so on,
// and backward through the chunks in reverse.
PipelineList Interleaved(const PipelineShape& shape, int stage) {
  const int group = shape.stages * shape.chunks;
  const auto micro_batch = [=](int i) {
    return i / group * shape.stages + i % group % shape.stages;
  };
  const auto chunk = [=](int i) { return i % group / shape.stages; };
  const int warm_up = 2 * (shape.stages - stage - 1) + (shape.chunks - 1) * shape.stages;
  return WarmUpThenPairs(
      shape.micro_batches * shape.chunks, warm_up,
      [&](int i) { return Forward(micro_batch(i), chunk(i)); },
      [&](int i) { return Backward(micro_batch(i), shape.chunks - 1 - chunk(i)); });
}

PipelineList ComputationsOf(const PipelineShape& shape, int stage) {
  switch (shape.schedule) {
    case PipelineSchedule::kGPipe:
      return GPipe(shape);
    case PipelineSchedule::k1F1B:
      return OneForwardOneBackward(shape, stage);
    case PipelineSchedule::kInterleaved:
      return Interleaved(shape, stage);
  }
  return {};
}

// An operation at a moment of the common order. Transfers come before computations that start at
// the same moment, which may need them.
struct Event {
  double time;
  bool computes;
  int stage;
  PipelineOperation operation;
};

// The transfer of what `made` made to the part that needs it, for both of its stages; nothing at
// the ends of the pipeline or when both parts are on one stage.
void AppendTransfer(const PipelineShape& shape, const ComputeSpan& made, std::vector<Event>* sends,
                    std::vector<Event>* receives) {
  const bool forward = made.operation.action == PipelineAction::kForward;
  const int part = shape.PartOf(made.stage, made.operation.chunk);
  const int other = forward ? part + 1 : part - 1;
  if (shape.stages == 1 || other < 0 || other >= shape.parts()) return;
  const int other_stage = other % shape.stages;
  sends->push_back({made.end,
                    false,
                    made.stage,
                    {forward ? PipelineAction::kSendActivation : PipelineAction::kSendGradient,
                     made.operation.micro_batch, made.operation.chunk, other_stage}});
  receives->push_back(
      {made.end,
       false,
       other_stage,
       {forward ? PipelineAction::kReceiveActivation : PipelineAction::kReceiveGradient,
        made.operation.micro_batch, other / shape.stages, made.stage}});
}

// Adds the transfers to lists of computations. All events, a transfer being one event of two
// stages, are put into one order by the time of a simulated run; every list is that order cut down
// to one stage. The first event in that order that has not run always can, which is why blocking
// sends cannot lock up.
std::vector<PipelineList> AddTransfers(const PipelineShape& shape,
                                       const std::vector<ComputeSpan>& spans) {
  std::vector<Event> events;
  for (const ComputeSpan& span : spans) {
    events.push_back({span.start, true, span.stage, span.operation});
  }
  // Stable sorting keeps the order of spans among transfers of one moment, for senders and
  // receivers alike.
  std::vector<Event> sends;
  std::vector<Event> receives;
  for (const ComputeSpan& span : spans) AppendTransfer(shape, span, &sends, &receives);
  for (size_t i = 0; i < sends.size(); ++i) {
    events.push_back(sends[i]);
    events.push_back(receives[i]);
  }
  std::stable_sort(events.begin(), events.end(), [](const Event& a, const Event& b) {
    return a.time != b.time ? a.time < b.time : a.computes < b.computes;
  });
  std::vector<PipelineList> lists(shape.stages);
  for (const Event& event : events) lists[event.stage].push_back(event.operation);
  return lists;
}

}  // namespace

absl::Status CheckPipelineShape(const PipelineShape& shape, int64_t layers) {
  const std::string factors = absl::StrCat("pipeline ", shape.stages, ", micro-batches ",
                                           shape.micro_batches, ", chunks ", shape.chunks);
  if (shape.stages < 1 || shape.micro_batches < 1 || shape.chunks < 1) {
    return absl::InvalidArgumentError(absl::StrCat("each of ", factors, " must be 1 or more"));
  }
  const bool interleaved = shape.schedule == PipelineSchedule::kInterleaved;
  if (interleaved != (shape.chunks > 1)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "chunks is ", shape.chunks, ", but it must be ",
        interleaved ? "2 or more for the interleaved schedule" : "1 for GPipe and 1F1B"));
  }
  if (interleaved && shape.micro_batches % shape.stages != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("the interleaved schedule needs micro-batches that are a multiple of the "
                     "stages, which these are not: ",
                     factors));
  }
  if (shape.parts() > layers) {
    return absl::InvalidArgumentError(
        absl::StrCat(layers, " layers cannot be cut into ", shape.parts(), " parts: ", factors));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<PipelineList>> MakePipelineSchedule(const PipelineShape& shape,
                                                               int64_t layers) {
  FATHOM_RETURN_IF_ERROR(CheckPipelineShape(shape, layers));
  std::vector<PipelineList> computations;
  for (int stage = 0; stage < shape.stages; ++stage) {
    computations.push_back(ComputationsOf(shape, stage));
  }
  FATHOM_ASSIGN_OR_RETURN(
      const PipelineTimeline timeline,
      SimulatePipeline(shape, computations, UniformCosts(shape, shape.chunks, 2 * shape.chunks)));
  return AddTransfers(shape, timeline.spans);
}

}  // namespace fathom
