#include "runtime/export.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <memory>
#include <utility>

#include "core/status.h"
#include "runtime/checkpoint/open_weights.h"
#include "runtime/data/tokenizer.h"
#include "runtime/export_source.h"
#include "runtime/huggingface/config.h"
#include "runtime/huggingface/model_files.h"
#include "runtime/huggingface/starting_job.h"
#include "runtime/new_directory.h"

namespace fathom {
namespace {

// What Hugging Face keeps beside the weights, about text and how to generate it.
constexpr const char* kTokenizerFiles[] = {"tokenizer.json",
                                           "vocab.json",
                                           "merges.txt",
                                           "tokenizer_config.json",
                                           "special_tokens_map.json",
                                           "added_tokens.json",
                                           "chat_template.jinja",
                                           "generation_config.json"};

// A mixture without shared experts has for Hugging Face shared ones of width 0.
void AddEmptyExperts(const ModelConfig& model, TensorList* list) {
  if (model.shared > 0) return;
  const DType dtype = list->arrays[0].dtype;
  const size_t whole = list->arrays.size();
  for (size_t i = 0; i < model.plan.layers.size(); ++i) {
    if (!model.plan.layers[i].spec.experts) continue;
    const std::string prefix = absl::StrCat("model.layers.", i, ".mlp.shared_experts.");
    list->arrays.push_back({prefix + "gate_proj.weight", dtype, {0, model.d}});
    list->arrays.push_back({prefix + "up_proj.weight", dtype, {0, model.d}});
    list->arrays.push_back({prefix + "down_proj.weight", dtype, {model.d, 0}});
  }
  if (!list->load) return;
  list->load = [load = list->load, whole](size_t i) -> absl::StatusOr<const void*> {
    if (i >= whole) return nullptr;
    return load(i);
  };
}

// Writes one export into a directory that is not yet there by its final name.
class Writer {
 public:
  Writer(FileSystem& files, const ExportSource& source, const std::string& directory,
         const ExportOptions& options)
      : files_(files), source_(source), directory_(directory), options_(options) {}

  // Prepares all that can be refused.
  absl::Status Check() {
    if (options_.format == ExportFormat::kHuggingFace) {
      FATHOM_RETURN_IF_ERROR(PrepareHuggingFace());
    } else {
      tensors_ = source_.tensors;
      shard_bytes_ = std::numeric_limits<int64_t>::max();
    }
    if (source_.is_tied) {
      notes_.push_back(absl::StrCat(
          source_.path, " has one matrix for embedding and head: each got a copy of it"));
    }
    return absl::OkStatus();
  }

  absl::Status Write(const std::string& temporary) {
    FATHOM_ASSIGN_OR_RETURN(const int64_t written, WriteModelFiles(files_, temporary, tensors_,
                                                                   {.dtype = options_.dtype,
                                                                    .shard_bytes = shard_bytes_}));
    if (written > 1) notes_.push_back(absl::StrCat("the weights are in ", written, " files"));
    if (!config_.empty()) {
      FATHOM_RETURN_IF_ERROR(
          WriteFileAtomically(files_, JoinPath(temporary, kHuggingFaceConfigFile), config_));
    }
    const bool starts = source_.is_huggingface && options_.format == ExportFormat::kCheckpoint;
    if (starts || options_.format == ExportFormat::kHuggingFace) {
      FATHOM_RETURN_IF_ERROR(CopyTokenizer(temporary));
    }
    if (starts) {
      FATHOM_RETURN_IF_ERROR(
          WriteFileAtomically(files_, JoinPath(temporary, kStartingJobFile), StartingJobText()));
    }
    return files_.SyncDirectory(temporary);
  }

  std::vector<std::string> TakeNotes() { return std::move(notes_); }

 private:
  absl::Status PrepareHuggingFace() {
    if (!source_.model) {
      return absl::InvalidArgumentError(absl::StrCat(
          source_.path, " holds weights without a job that says which model they are of: name one ",
          "with --job"));
    }
    const ModelConfig& model = *source_.model;
    FATHOM_ASSIGN_OR_RETURN(tensors_, SelectModelTensors(model, source_.tensors, source_.path));
    const DType dtype = options_.dtype.value_or(tensors_.arrays[0].dtype);
    FATHOM_ASSIGN_OR_RETURN(config_, MakeHuggingFaceConfig(model, source_.positions, dtype));
    AddEmptyExperts(model, &tensors_);
    shard_bytes_ = options_.shard_bytes;
    return absl::OkStatus();
  }

  absl::Status CopyTokenizer(const std::string& temporary) {
    if (source_.tokenizer.empty()) return absl::OkStatus();
    for (const char* name : kTokenizerFiles) {
      const std::string from = JoinPath(source_.tokenizer, name);
      if (!files_.Exists(from)) continue;
      FATHOM_ASSIGN_OR_RETURN(const std::unique_ptr<ReadableFile> file, files_.OpenForRead(from));
      FATHOM_RETURN_IF_ERROR(
          WriteFileAtomically(files_, JoinPath(temporary, name), file->contents()));
    }
    return absl::OkStatus();
  }

  bool HasTokenizer() {
    return files_.Exists(JoinPath(source_.tokenizer, "tokenizer.json")) ||
           files_.Exists(JoinPath(source_.tokenizer, "vocab.json"));
  }

  // Names the copied tokenizer where Fathom can use it.
  std::string StartingJobText() {
    constexpr int64_t kLength = 2048;
    StartingJob job = {.model = *source_.model,
                       .name = std::filesystem::path(directory_).filename().string(),
                       .weights = directory_,
                       .tokenizer = directory_,
                       .about_tokenizer = "",
                       .sequence_length = kLength};
    if (source_.positions > 0) job.sequence_length = std::min(kLength, source_.positions);
    const auto tokenizer = MakeTokenizer(JoinPath(source_.tokenizer, "tokenizer.json"), files_);
    const bool fits = tokenizer.ok() && (*tokenizer)->vocabulary() <= job.model.vocabulary;
    if (fits) return MakeStartingJob(job);
    if (HasTokenizer()) {
      job.about_tokenizer = absl::StrCat(
          "Fathom cannot use the tokenizer: ",
          tokenizer.ok()
              ? absl::StrCat("it has ", (*tokenizer)->vocabulary(), " tokens, more than the model")
              : std::string(tokenizer.status().message()));
      notes_.push_back(job.about_tokenizer);
    }
    // The default takes bytes, for which the vocabulary may be too small.
    if (job.model.vocabulary >= 257) job.tokenizer.clear();
    return MakeStartingJob(job);
  }

  FileSystem& files_;
  const ExportSource& source_;
  const std::string& directory_;
  const ExportOptions& options_;
  TensorList tensors_;
  std::string config_;  // of Hugging Face; empty: none
  int64_t shard_bytes_ = 0;
  std::vector<std::string> notes_;
};

}  // namespace

absl::StatusOr<std::vector<std::string>> Export(FileSystem& files, const std::string& from,
                                                std::string directory,
                                                const ExportOptions& options) {
  // Its last part names the job.
  while (directory.size() > 1 && directory.back() == '/') directory.pop_back();
  FATHOM_RETURN_IF_ERROR(CheckNewDirectory(files, directory));
  FATHOM_ASSIGN_OR_RETURN(const ExportSource source, OpenExportSource(files, from, options.job));
  Writer writer(files, source, directory, options);
  FATHOM_RETURN_IF_ERROR(writer.Check());
  FATHOM_RETURN_IF_ERROR(WriteNewDirectory(
      files, directory, [&](const std::string& path) { return writer.Write(path); }));
  return writer.TakeNotes();
}

}  // namespace fathom
