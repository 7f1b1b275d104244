#pragma once

#include "absl/status/statusor.h"
#include "core/job.h"
#include "proto/job.pb.h"

namespace fathom {

// Fills in the defaults of `message`, whose name is set, and turns it into plain structs.
// InvalidArgument names the field, its value and what would be right. Used by core/job.cc only.
absl::StatusOr<Job> ToJob(proto::Job* message);

}  // namespace fathom
