#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "core/file.h"
#include "core/job.h"
#include "runtime/huggingface/model_tensors.h"

namespace fathom {

// What `fathom convert` reads.
struct ExportSource {
  std::string path;
  TensorList tensors;
  bool is_huggingface = false;
  std::optional<ModelConfig> model;  // absent: of weights that no job describes
  int64_t positions = 0;             // in a sequence; 0: not known
  std::string tokenizer;             // a directory that may hold tokenizer files; empty: none
  bool is_tied = false;              // the head is the embedding's data
};

// Opens whatever `path` names: a Hugging Face directory (with config.json), a checkpoint, a run
// (its newest checkpoint), a safetensors file, or a directory with model.safetensors. The model is
// that of config.json or of the checkpoint's job; for weights alone that of the job file `job`, or
// else of job.txtpb beside the weights. Nothing but headers is read. NotFound, InvalidArgument or
// DataLoss in one sentence.
absl::StatusOr<ExportSource> OpenExportSource(FileSystem& files, const std::string& path,
                                              const std::string& job);

// Beside converted weights: a job with their model.
inline constexpr char kStartingJobFile[] = "job.txtpb";

}  // namespace fathom
