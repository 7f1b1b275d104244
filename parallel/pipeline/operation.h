#pragma once

#include <string>
#include <vector>

#include "core/pipeline_schedule.h"

// A pipeline schedule as data: what each stage does, in order.
namespace fathom {

// Layers are cut into stages x chunks consecutive parts. Part v is chunk v / stages of stage
// v % stages.
struct PipelineShape {
  PipelineSchedule schedule = PipelineSchedule::k1F1B;
  int stages = 1;         // P
  int micro_batches = 1;  // M, per replica and step
  int chunks = 1;         // V

  int parts() const { return stages * chunks; }
  int PartOf(int stage, int chunk) const { return chunk * stages + stage; }
};

enum class PipelineAction {
  kForward,
  kBackward,
  kSendActivation,  // of the part's output to the next part
  kReceiveActivation,
  kSendGradient,  // of the part's input to the previous part
  kReceiveGradient,
};

struct PipelineOperation {
  PipelineAction action = PipelineAction::kForward;
  int micro_batch = 0;
  int chunk = 0;  // of this stage: the one that computes, sends what it made or needs what comes
  int peer = -1;  // the other stage of a transfer

  bool computes() const {
    return action == PipelineAction::kForward || action == PipelineAction::kBackward;
  }
  bool sends() const {
    return action == PipelineAction::kSendActivation || action == PipelineAction::kSendGradient;
  }
  bool operator==(const PipelineOperation&) const = default;
};

// What one stage does, in order.
using PipelineList = std::vector<PipelineOperation>;

// "F0 a0>1 F1": forward of micro-batch 0, its activation to stage 1, forward of micro-batch 1;
// "g0<1 B0": the gradient from stage 1, backward. With several chunks "F0.1" is chunk 1's.
std::string ToString(const PipelineList& list, const PipelineShape& shape);
// The same without transfers.
std::string ComputeOrder(const PipelineList& list, const PipelineShape& shape);

}  // namespace fathom
