#include "parallel/pipeline/simulate.h"

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/status.h"

namespace fathom {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

// The state of a simulated run: when each part has finished each micro-batch.
class Run {
 public:
  Run(const PipelineShape& shape, const PipelineCosts& costs)
      : shape_(shape),
        costs_(costs),
        forward_end_(shape.parts(), std::vector<double>(shape.micro_batches, kNever)),
        backward_end_(forward_end_),
        free_(shape.stages, 0) {}

  // When `stage` can start the operation, kNever if its operands do not exist yet.
  double StartOf(int stage, const PipelineOperation& operation) const {
    const int part = shape_.PartOf(stage, operation.chunk);
    const int m = operation.micro_batch;
    double ready = free_[stage];
    if (operation.action == PipelineAction::kForward) {
      if (part > 0) ready = std::max(ready, forward_end_[part - 1][m] + Transfer());
    } else {
      ready = std::max(ready, forward_end_[part][m]);
      if (part + 1 < shape_.parts()) {
        ready = std::max(ready, backward_end_[part + 1][m] + Transfer());
      }
    }
    return ready;
  }

  ComputeSpan Execute(int stage, const PipelineOperation& operation) {
    const int part = shape_.PartOf(stage, operation.chunk);
    const bool forward = operation.action == PipelineAction::kForward;
    ComputeSpan span{stage, operation, StartOf(stage, operation), 0};
    span.end = span.start + (forward ? costs_.forward : costs_.backward)[part];
    (forward ? forward_end_ : backward_end_)[part][operation.micro_batch] = span.end;
    free_[stage] = span.end;
    return span;
  }

 private:
  double Transfer() const { return shape_.stages > 1 ? costs_.transfer : 0; }

  const PipelineShape& shape_;
  const PipelineCosts& costs_;
  std::vector<std::vector<double>> forward_end_;  // [part][micro-batch]
  std::vector<std::vector<double>> backward_end_;
  std::vector<double> free_;  // per stage: the end of its last computation
};

std::vector<int> PeakInFlight(const PipelineShape& shape, const std::vector<ComputeSpan>& spans) {
  std::vector<int> now(shape.stages, 0);
  std::vector<int> peak(shape.stages, 0);
  for (const ComputeSpan& span : spans) {  // a stage's spans are in its order
    int& count = now[span.stage];
    if (span.operation.action == PipelineAction::kForward) {
      peak[span.stage] = std::max(peak[span.stage], ++count);
    } else {
      --count;
    }
  }
  return peak;
}

absl::Status CheckRange(const PipelineShape& shape, const PipelineOperation& operation, int stage) {
  const bool good = operation.micro_batch >= 0 && operation.micro_batch < shape.micro_batches &&
                    operation.chunk >= 0 && operation.chunk < shape.chunks;
  if (good) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("stage ", stage, " has micro-batch ",
                                                    operation.micro_batch, " of chunk ",
                                                    operation.chunk, ", which does not exist"));
}

// The operations that a right list has, each with the one it must stand behind.
struct Expected {
  PipelineOperation operation;
  PipelineOperation behind;
};

std::vector<Expected> ExpectedOperations(const PipelineShape& shape, int stage) {
  using Action = PipelineAction;
  std::vector<Expected> expected;
  for (int chunk = 0; chunk < shape.chunks; ++chunk) {
    const int part = shape.PartOf(stage, chunk);
    const bool has_previous = shape.stages > 1 && part > 0;
    const bool has_next = shape.stages > 1 && part + 1 < shape.parts();
    const int previous = (stage + shape.stages - 1) % shape.stages;
    const int next = (stage + 1) % shape.stages;
    for (int m = 0; m < shape.micro_batches; ++m) {
      const PipelineOperation forward{Action::kForward, m, chunk, -1};
      const PipelineOperation backward{Action::kBackward, m, chunk, -1};
      expected.push_back({backward, forward});
      if (has_previous) {
        expected.push_back({forward, {Action::kReceiveActivation, m, chunk, previous}});
        expected.push_back({{Action::kSendGradient, m, chunk, previous}, backward});
      }
      if (has_next) {
        expected.push_back({{Action::kSendActivation, m, chunk, next}, forward});
        expected.push_back({backward, {Action::kReceiveGradient, m, chunk, next}});
      }
    }
  }
  return expected;
}

std::string Text(const PipelineOperation& operation, const PipelineShape& shape) {
  return ToString(PipelineList{operation}, shape);
}

absl::Status CheckStage(const PipelineShape& shape, int stage, const PipelineList& list) {
  std::map<std::tuple<PipelineAction, int, int, int>, size_t> place;
  const auto key = [](const PipelineOperation& o) {
    return std::tuple(o.action, o.micro_batch, o.chunk, o.peer);
  };
  for (size_t i = 0; i < list.size(); ++i) {
    FATHOM_RETURN_IF_ERROR(CheckRange(shape, list[i], stage));
    if (!place.emplace(key(list[i]), i).second) {
      return absl::FailedPreconditionError(
          absl::StrCat("stage ", stage, " has ", Text(list[i], shape), " twice"));
    }
  }
  std::map<std::tuple<PipelineAction, int, int, int>, bool> needed;
  for (const Expected& expected : ExpectedOperations(shape, stage)) {
    for (const PipelineOperation& operation : {expected.operation, expected.behind}) {
      needed[key(operation)] = true;
      if (place.count(key(operation)) == 0) {
        return absl::FailedPreconditionError(
            absl::StrCat("stage ", stage, " lacks ", Text(operation, shape)));
      }
    }
    if (place[key(expected.operation)] < place[key(expected.behind)]) {
      return absl::FailedPreconditionError(absl::StrCat("stage ", stage, " has ",
                                                        Text(expected.operation, shape), " before ",
                                                        Text(expected.behind, shape)));
    }
  }
  for (const PipelineOperation& operation : list) {
    if (needed.count(key(operation)) == 0) {
      return absl::FailedPreconditionError(
          absl::StrCat("stage ", stage, " has ", Text(operation, shape), ", which nobody needs"));
    }
  }
  return absl::OkStatus();
}

// Whether `receive`, an operation of stage `to`, takes what `send` of stage `from` sends.
bool Matches(const PipelineShape& shape, int from, const PipelineOperation& send, int to,
             const PipelineOperation& receive) {
  const bool forward = send.action == PipelineAction::kSendActivation;
  const PipelineAction wanted =
      forward ? PipelineAction::kReceiveActivation : PipelineAction::kReceiveGradient;
  const int part = shape.PartOf(from, send.chunk) + (forward ? 1 : -1);
  return receive.action == wanted && receive.peer == from && send.peer == to &&
         receive.micro_batch == send.micro_batch && shape.PartOf(to, receive.chunk) == part;
}

absl::Status CheckBlocking(const PipelineShape& shape, const std::vector<PipelineList>& lists) {
  std::vector<size_t> next(shape.stages, 0);
  const auto at_end = [&](int stage) { return next[stage] == lists[stage].size(); };
  bool progress = true;
  while (progress) {
    progress = false;
    for (int stage = 0; stage < shape.stages; ++stage) {
      while (!at_end(stage)) {
        const PipelineOperation& operation = lists[stage][next[stage]];
        if (!operation.computes()) {
          const int peer = operation.peer;
          if (!operation.sends() || at_end(peer)) break;
          if (!Matches(shape, stage, operation, peer, lists[peer][next[peer]])) break;
          ++next[peer];
        }
        ++next[stage];
        progress = true;
      }
    }
  }
  std::string stuck;
  for (int stage = 0; stage < shape.stages; ++stage) {
    if (at_end(stage)) continue;
    absl::StrAppend(&stuck, stuck.empty() ? "" : ", ", "stage ", stage, " at ",
                    Text(lists[stage][next[stage]], shape));
  }
  if (stuck.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("with blocking sends the lists stop: ", stuck));
}

}  // namespace

PipelineCosts UniformCosts(const PipelineShape& shape, double forward, double backward) {
  return {.forward = std::vector<double>(shape.parts(), forward / shape.chunks),
          .backward = std::vector<double>(shape.parts(), backward / shape.chunks)};
}

absl::StatusOr<PipelineTimeline> SimulatePipeline(const PipelineShape& shape,
                                                  const std::vector<PipelineList>& lists,
                                                  const PipelineCosts& costs) {
  FATHOM_CHECK_EQ(lists.size(), static_cast<size_t>(shape.stages));
  FATHOM_CHECK_EQ(costs.forward.size(), static_cast<size_t>(shape.parts()));
  FATHOM_CHECK_EQ(costs.backward.size(), static_cast<size_t>(shape.parts()));
  Run run(shape, costs);
  PipelineTimeline timeline;
  std::vector<size_t> next(shape.stages, 0);
  double busy = 0;
  while (true) {
    // The computation that starts first, on the lowest stage.
    int first = -1;
    double first_start = kNever;
    bool ended = true;
    for (int stage = 0; stage < shape.stages; ++stage) {
      const PipelineList& list = lists[stage];
      while (next[stage] < list.size() && !list[next[stage]].computes()) ++next[stage];
      if (next[stage] == list.size()) continue;
      ended = false;
      FATHOM_RETURN_IF_ERROR(CheckRange(shape, list[next[stage]], stage));
      const double start = run.StartOf(stage, list[next[stage]]);
      if (start < first_start) {
        first = stage;
        first_start = start;
      }
    }
    if (ended) break;
    if (first < 0) {
      return absl::FailedPreconditionError(
          "the lists stop: every stage waits for a computation of another one");
    }
    timeline.spans.push_back(run.Execute(first, lists[first][next[first]++]));
    const ComputeSpan& span = timeline.spans.back();
    timeline.length = std::max(timeline.length, span.end);
    busy += span.end - span.start;
  }
  timeline.bubble_fraction = timeline.length > 0 ? 1 - busy / (shape.stages * timeline.length) : 0;
  timeline.peak_in_flight = PeakInFlight(shape, timeline.spans);
  return timeline;
}

absl::Status CheckPipelineLists(const PipelineShape& shape,
                                const std::vector<PipelineList>& lists) {
  if (lists.size() != static_cast<size_t>(shape.stages)) {
    return absl::FailedPreconditionError(
        absl::StrCat("there are ", lists.size(), " lists for ", shape.stages, " stages"));
  }
  for (int stage = 0; stage < shape.stages; ++stage) {
    FATHOM_RETURN_IF_ERROR(CheckStage(shape, stage, lists[stage]));
  }
  return CheckBlocking(shape, lists);
}

}  // namespace fathom
