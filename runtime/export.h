#pragma once

#include <string>

#include "absl/status/status.h"
#include "core/file.h"

namespace fathom {

enum class ExportFormat {
  kCheckpoint,   // the weights under the names of checkpoints, for train.init_from
  kHuggingFace,  // the same, and a config.json for Qwen3ForCausalLM
};

// Writes DIRECTORY/model.safetensors with the weights of a checkpoint (or of a run's newest one),
// aside and renamed. AlreadyExists when `directory` holds anything; InvalidArgument for
// kHuggingFace when Hugging Face has no model for the layer plan.
absl::Status ExportWeights(FileSystem& files, const std::string& checkpoint,
                           const std::string& directory, ExportFormat format);

}  // namespace fathom
