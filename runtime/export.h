#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/dtype.h"
#include "core/file.h"

namespace fathom {

enum class ExportFormat {
  kCheckpoint,   // the weights under the names of checkpoints, for train.init_from
  kHuggingFace,  // the same, with a config.json for Qwen3ForCausalLM or Glm4MoeForCausalLM
};

struct ExportOptions {
  ExportFormat format = ExportFormat::kCheckpoint;
  std::optional<DType> dtype;           // of ModelFileOptions
  int64_t shard_bytes = 5'000'000'000;  // for kHuggingFace; checkpoints' weights are one file
  std::string job;                      // of OpenExportSource
};

// Converts what OpenExportSource opens, and writes the new or empty `directory`, aside and renamed:
// its weights; for kHuggingFace config.json; out of a Hugging Face directory, for kCheckpoint, a
// job to start from; and the tokenizer's files where there are any. One tensor is in memory at a
// time. What the user should know of it, one sentence each. AlreadyExists when `directory` holds
// anything; InvalidArgument for kHuggingFace when Hugging Face has no such model.
absl::StatusOr<std::vector<std::string>> Export(FileSystem& files, const std::string& from,
                                                std::string directory,
                                                const ExportOptions& options);

}  // namespace fathom
