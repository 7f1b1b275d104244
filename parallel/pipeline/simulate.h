#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "parallel/pipeline/operation.h"

// Runs a schedule's lists on paper: what they cost, and whether they are right.
namespace fathom {

// Time of each part (PipelineShape::PartOf) for one micro-batch, and of one transfer, in any unit.
struct PipelineCosts {
  std::vector<double> forward;
  std::vector<double> backward;
  double transfer = 0;
};

// Every part costs the same; a whole stage costs `forward` and `backward`.
PipelineCosts UniformCosts(const PipelineShape& shape, double forward, double backward);

struct ComputeSpan {
  int stage = 0;
  PipelineOperation operation;
  double start = 0;
  double end = 0;
};

struct PipelineTimeline {
  std::vector<ComputeSpan> spans;  // by start, then by stage
  double length = 0;
  // The share of the stages' time, from the first start to the last end, in which they compute
  // nothing: (P-1)/(M+P-1) for GPipe and 1F1B, (P-1)/(V*M+P-1) interleaved, when all parts cost the
  // same and transfers nothing. Against the time of computing it is (P-1)/M, and 1/V of that.
  double bubble_fraction = 0;
  // Per stage: the most (micro-batch, chunk) pairs whose forward has begun and whose backward has
  // not ended, which is how many activations are kept.
  std::vector<int> peak_in_flight;
};

// Sends do not block; a computation starts when the one before it on its stage has ended and its
// operands have arrived. Transfers in the lists are not needed and ignored. FailedPrecondition when
// the computations cannot all run.
absl::StatusOr<PipelineTimeline> SimulatePipeline(const PipelineShape& shape,
                                                  const std::vector<PipelineList>& lists,
                                                  const PipelineCosts& costs);

// FailedPrecondition, naming the first fault, unless
// - every stage computes forward and backward of each micro-batch in each chunk once, forward
// first;
// - exactly the transfers that this needs are there, with the right peer, sent after what makes
// them
//   and received before what needs them;
// - the lists end when each send and receive blocks until the other side has reached it.
absl::Status CheckPipelineLists(const PipelineShape& shape, const std::vector<PipelineList>& lists);

}  // namespace fathom
