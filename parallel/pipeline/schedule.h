#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "parallel/pipeline/operation.h"

namespace fathom {

// InvalidArgument unless all counts are at least 1, chunks are above 1 exactly for kInterleaved,
// kInterleaved has a multiple of `stages` micro-batches, and `layers` are at least stages x chunks.
absl::Status CheckPipelineShape(const PipelineShape& shape, int64_t layers);

// The list of every stage. Gradients are added up in ascending order of the micro-batches in every
// schedule. A send stands right behind what makes it. Receives stand where the data can be there
// when backward takes twice as long as forward. All transfers follow one order that all stages
// share, so that the lists end even if every send blocks until its receive is reached.
absl::StatusOr<std::vector<PipelineList>> MakePipelineSchedule(const PipelineShape& shape,
                                                               int64_t layers);

}  // namespace fathom
