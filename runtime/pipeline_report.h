#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "core/job.h"

namespace fathom {

// What a job's pipeline is, in one line for the user: which layers each stage has and, from the
// schedule's own lists with every part as long as its FLOPs, the share of time in which stages have
// nothing to do:
//   "pipeline: stages of layers 0-3, 4-7; 1F1B with 8 micro-batches leaves them idle 13.2% of the
//   time"
// Empty for a job of one stage. Errors: those of a layout that does not fit.
absl::StatusOr<std::string> DescribePipeline(const Job& job);

}  // namespace fathom
