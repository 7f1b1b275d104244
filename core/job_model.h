#pragma once

#include "absl/status/statusor.h"
#include "core/job.h"
#include "proto/job.pb.h"

namespace fathom {

// The model of a job whose defaults are filled in, for sequences of `sequence_length` tokens.
// InvalidArgument names the field, its value and what would be right. Used by core/job.cc only.
absl::StatusOr<ModelConfig> ToModelConfig(const proto::Model& model, int64_t sequence_length);

}  // namespace fathom
