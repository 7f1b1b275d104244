#include "runtime/export_source.h"

#include <memory>
#include <utility>
#include <vector>

#include "core/status.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/open_weights.h"
#include "runtime/checkpoint/tensor_source.h"
#include "runtime/huggingface/config.h"
#include "runtime/huggingface/starting_job.h"
#include "runtime/huggingface/weights.h"

namespace fathom {
namespace {

// Checks the sizes as those of a job, which have limits of their own.
absl::Status CheckModel(const HuggingFaceConfig& config, const std::string& path) {
  // The tokenizer's limit on the vocabulary is not the model's.
  const std::string text = MakeStartingJob({.model = config.model,
                                            .name = "converted",
                                            .weights = "",
                                            .tokenizer = "any",
                                            .about_tokenizer = "",
                                            .sequence_length = 1});
  return ParseJob(text, path, {}).status();
}

absl::StatusOr<ExportSource> OpenHuggingFace(FileSystem& files, const std::string& directory) {
  const std::string path = JoinPath(directory, kHuggingFaceConfigFile);
  FATHOM_ASSIGN_OR_RETURN(const std::string text, ReadFile(files, path));
  FATHOM_ASSIGN_OR_RETURN(const HuggingFaceConfig config, ParseHuggingFaceConfig(text, path));
  FATHOM_RETURN_IF_ERROR(CheckModel(config, path));
  ExportSource source;
  FATHOM_ASSIGN_OR_RETURN(source.tensors, OpenHuggingFaceWeights(files, directory, config));
  source.is_huggingface = true;
  source.model = config.model;
  source.positions = config.positions;
  source.tokenizer = directory;
  source.is_tied = config.tied;
  return source;
}

void TakeJob(FileSystem& files, const Job& job, ExportSource* source) {
  source->model = job.model;
  source->positions = job.train.sequence_length;
  if (files.IsDirectory(job.data.tokenizer)) source->tokenizer = job.data.tokenizer;
}

// What `owner` keeps open. Its files may cut tensors anywhere.
TensorList TensorsOf(const TensorSource& source, std::shared_ptr<const void> owner) {
  const auto load = [&source, data = std::make_shared<std::vector<char>>()](
                        size_t i) -> absl::StatusOr<const void*> {
    const NamedArray& tensor = source.tensors()[i];
    data->resize(tensor.bytes());
    FATHOM_RETURN_IF_ERROR(
        source.ReadSlice(tensor, TensorSlice::Whole(tensor.shape), data->data()));
    return data->data();
  };
  return {.arrays = source.tensors(), .load = load, .owner = std::move(owner)};
}

absl::StatusOr<ExportSource> OpenCheckpointSource(FileSystem& files, const std::string& path) {
  FATHOM_ASSIGN_OR_RETURN(const std::string directory, FindCheckpoint(files, path));
  FATHOM_ASSIGN_OR_RETURN(Checkpoint opened, OpenCheckpoint(files, directory));
  const auto checkpoint = std::make_shared<const Checkpoint>(std::move(opened));
  ExportSource source;
  source.tensors = TensorsOf(*checkpoint->weights, checkpoint);
  FATHOM_ASSIGN_OR_RETURN(const Job job, ParseJob(checkpoint->manifest->job_text, directory, {}));
  TakeJob(files, job, &source);
  return source;
}

absl::StatusOr<ExportSource> OpenWeightsSource(FileSystem& files, const std::string& path,
                                               const std::string& job) {
  FATHOM_ASSIGN_OR_RETURN(std::unique_ptr<TensorSource> opened, OpenWeights(files, path));
  const std::shared_ptr<const TensorSource> weights = std::move(opened);
  ExportSource source;
  source.tensors = TensorsOf(*weights, weights);
  const std::string beside = JoinPath(path, kStartingJobFile);
  const std::string job_path = job.empty() && files.Exists(beside) ? beside : job;
  if (job_path.empty()) return source;
  FATHOM_ASSIGN_OR_RETURN(const Job described, ReadJob(job_path, {}));
  TakeJob(files, described, &source);
  return source;
}

absl::StatusOr<ExportSource> Open(FileSystem& files, const std::string& path,
                                  const std::string& job) {
  const bool is_huggingface = files.Exists(JoinPath(path, kHuggingFaceConfigFile));
  const bool is_directory = files.IsDirectory(path);
  const bool is_weights =
      (files.Exists(path) && !is_directory) || files.Exists(JoinPath(path, kModelFile));
  if (is_weights && !is_huggingface) return OpenWeightsSource(files, path, job);
  if (!job.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the job ", job, " is given, but ", path,
                     " is not weights alone: it says itself which model it has"));
  }
  if (is_huggingface) return OpenHuggingFace(files, path);
  return OpenCheckpointSource(files, path);
}

}  // namespace

absl::StatusOr<ExportSource> OpenExportSource(FileSystem& files, const std::string& path,
                                              const std::string& job) {
  FATHOM_ASSIGN_OR_RETURN(ExportSource source, Open(files, path, job));
  source.path = path;
  return source;
}

}  // namespace fathom
