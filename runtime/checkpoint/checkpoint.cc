#include "runtime/checkpoint/checkpoint.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "core/status.h"
#include "runtime/checkpoint/manifest.h"
#include "runtime/checksum.h"

namespace fathom {
namespace {

constexpr char kLatest[] = "LATEST";
constexpr char kManifest[] = "manifest.json";
constexpr char kWeights[] = "weights.safetensors";
constexpr char kOptimizer[] = "optimizer.safetensors";
// Directories that are being written or removed, and those that a new one of the same step pushed
// aside. Neither is a checkpoint; see ReadLatest for the moment in which the second is.
constexpr std::string_view kUnfinished = ".tmp";
constexpr std::string_view kReplaced = ".replaced";

bool EndsWith(std::string_view name, std::string_view suffix) {
  return name.size() >= suffix.size() && name.substr(name.size() - suffix.size()) == suffix;
}

std::string StepName(int64_t step) {
  char name[32];
  std::snprintf(name, sizeof(name), "step_%08lld", static_cast<long long>(step));
  return name;
}

// The step of "step_00001000"; nullopt for every other name.
std::optional<int64_t> StepOf(const std::string& name) {
  if (name.rfind("step_", 0) != 0 || name.size() < 13 || name.size() > 23) return std::nullopt;
  int64_t step = 0;
  for (const char c : name.substr(5)) {
    if (c < '0' || c > '9') return std::nullopt;
    step = step * 10 + (c - '0');
  }
  return StepName(step) == name ? std::optional(step) : std::nullopt;
}

// Passes data on and keeps its size and checksum.
class MeasuredFile final : public WritableFile {
 public:
  explicit MeasuredFile(std::unique_ptr<WritableFile> file) : file_(std::move(file)) {}
  absl::Status Append(std::string_view data) override {
    checksum_.Add(data);
    size_ += data.size();
    return file_->Append(data);
  }
  absl::Status Sync() override { return file_->Sync(); }
  absl::Status Close() override { return file_->Close(); }
  uint64_t checksum() const { return checksum_.value(); }
  int64_t size() const { return size_; }

 private:
  std::unique_ptr<WritableFile> file_;
  ChecksumStream checksum_;
  int64_t size_ = 0;
};

absl::StatusOr<ManifestFile> WriteTensors(FileSystem& files, const std::string& directory,
                                          const std::string& name,
                                          const std::vector<NamedArray>& tensors,
                                          const ArrayLoader& load) {
  FATHOM_ASSIGN_OR_RETURN(auto opened, files.OpenForWrite(JoinPath(directory, name)));
  MeasuredFile file(std::move(opened));
  FATHOM_RETURN_IF_ERROR(WriteSafetensors(file, tensors, {{"format", "pt"}}, load));
  FATHOM_RETURN_IF_ERROR(file.Sync());
  FATHOM_RETURN_IF_ERROR(file.Close());
  return ManifestFile{name, file.size(), file.checksum(), static_cast<int64_t>(tensors.size())};
}

absl::Status WriteDirectory(FileSystem& files, const std::string& directory,
                            const CheckpointContents& contents) {
  FATHOM_RETURN_IF_ERROR(files.CreateDirectories(directory));
  Manifest manifest = {.step = contents.step,
                       .consumed_sequences = contents.consumed_sequences,
                       .job_text = contents.job_text,
                       .files = {},
                       .integers = contents.integers,
                       .numbers = contents.numbers};
  FATHOM_ASSIGN_OR_RETURN(
      ManifestFile weights,
      WriteTensors(files, directory, kWeights, contents.weights, contents.load_weights));
  FATHOM_ASSIGN_OR_RETURN(
      ManifestFile optimizer,
      WriteTensors(files, directory, kOptimizer, contents.optimizer, contents.load_optimizer));
  manifest.files = {std::move(weights), std::move(optimizer)};
  FATHOM_ASSIGN_OR_RETURN(auto file, files.OpenForWrite(JoinPath(directory, kManifest)));
  FATHOM_RETURN_IF_ERROR(file->Append(FormatManifest(manifest)));
  FATHOM_RETURN_IF_ERROR(file->Sync());
  FATHOM_RETURN_IF_ERROR(file->Close());
  return files.SyncDirectory(directory);
}

// Removes what interrupted writers left. A replaced directory stays while nothing stands in its
// place, since LATEST may mean it.
absl::Status RemoveLeftovers(FileSystem& files, const std::string& output) {
  FATHOM_ASSIGN_OR_RETURN(const std::vector<std::string> names, files.List(output));
  for (const std::string& name : names) {
    const std::string path = JoinPath(output, name);
    if (name.rfind(absl::StrCat(kLatest, ".tmp-"), 0) == 0) {
      FATHOM_RETURN_IF_ERROR(files.RemoveAll(path));
      continue;
    }
    const bool replaced = EndsWith(name, kReplaced);
    const std::string_view suffix = replaced ? kReplaced : kUnfinished;
    if (!EndsWith(name, suffix)) continue;
    const std::string final_name = name.substr(0, name.size() - suffix.size());
    if (!StepOf(final_name).has_value()) continue;
    if (replaced && !files.Exists(JoinPath(output, final_name))) continue;
    FATHOM_RETURN_IF_ERROR(files.RemoveAll(path));
  }
  return absl::OkStatus();
}

// Renames first, so that a crash half-way leaves no directory that looks like a checkpoint.
absl::Status RemoveCheckpoint(FileSystem& files, const std::string& path) {
  const std::string aside = path + std::string(kUnfinished);
  FATHOM_RETURN_IF_ERROR(files.Rename(path, aside));
  return files.RemoveAll(aside);
}

// Checks size, checksum and number of tensors of one file.
absl::StatusOr<std::unique_ptr<SafetensorsFile>> OpenTensors(FileSystem& files,
                                                             const std::string& directory,
                                                             const Manifest& manifest,
                                                             const std::string& name) {
  const auto entry = std::find_if(manifest.files.begin(), manifest.files.end(),
                                  [&](const ManifestFile& file) { return file.name == name; });
  const std::string path = JoinPath(directory, name);
  if (entry == manifest.files.end()) {
    return absl::DataLossError(absl::StrCat(directory, "/", kManifest, " does not list ", name));
  }
  {
    FATHOM_ASSIGN_OR_RETURN(const std::unique_ptr<ReadableFile> file, files.OpenForRead(path));
    if (file->size() != entry->size) {
      return absl::DataLossError(absl::StrCat(path, " has ", file->size(),
                                              " bytes where the manifest says ", entry->size));
    }
    if (Checksum(file->contents()) != entry->checksum) {
      return absl::DataLossError(
          absl::StrCat(path, " is damaged: it does not match the manifest's checksum"));
    }
  }
  FATHOM_ASSIGN_OR_RETURN(auto tensors, SafetensorsFile::Open(files, path));
  if (tensors->tensors().size() != entry->tensors) {
    return absl::DataLossError(absl::StrCat(path, " has ", tensors->tensors().size(),
                                            " tensors where the manifest says ", entry->tensors));
  }
  return tensors;
}

}  // namespace

absl::Status WriteCheckpoint(FileSystem& files, const std::string& output,
                             const CheckpointContents& contents) {
  const std::string name = StepName(contents.step);
  const std::string path = JoinPath(output, name);
  const std::string temporary = path + std::string(kUnfinished);
  const std::string replaced = path + std::string(kReplaced);
  FATHOM_RETURN_IF_ERROR(files.CreateDirectories(output));
  FATHOM_RETURN_IF_ERROR(RemoveLeftovers(files, output));
  FATHOM_RETURN_IF_ERROR(WriteDirectory(files, temporary, contents));
  if (files.Exists(path)) FATHOM_RETURN_IF_ERROR(files.Rename(path, replaced));
  FATHOM_RETURN_IF_ERROR(files.Rename(temporary, path));
  FATHOM_RETURN_IF_ERROR(files.SyncDirectory(output));
  FATHOM_RETURN_IF_ERROR(
      WriteFileAtomically(files, JoinPath(output, kLatest), absl::StrCat(name, "\n")));
  return files.RemoveAll(replaced);
}

absl::StatusOr<std::optional<std::string>> ReadLatest(FileSystem& files,
                                                      const std::string& output) {
  const std::string latest = JoinPath(output, kLatest);
  if (!files.Exists(latest)) return std::nullopt;
  FATHOM_ASSIGN_OR_RETURN(std::string name, ReadFile(files, latest));
  if (!name.empty() && name.back() == '\n') name.pop_back();
  if (!StepOf(name).has_value()) {
    return absl::DataLossError(
        absl::StrCat(latest, " should hold the name of a checkpoint, as step_00001000"));
  }
  // A crash between the two renames of a replacement leaves the old checkpoint under this name.
  const std::string path = JoinPath(output, name);
  for (const std::string& candidate : {path, path + std::string(kReplaced)}) {
    if (files.IsDirectory(candidate)) return candidate;
  }
  return absl::DataLossError(absl::StrCat(latest, " names ", name, ", which is not there"));
}

absl::Status RemoveOldCheckpoints(FileSystem& files, const std::string& output,
                                  const CheckpointConfig& config) {
  if (config.keep <= 0) return absl::OkStatus();
  FATHOM_ASSIGN_OR_RETURN(const std::optional<std::string> latest, ReadLatest(files, output));
  FATHOM_ASSIGN_OR_RETURN(const std::vector<std::string> names, files.List(output));
  std::vector<int64_t> steps;
  for (const std::string& name : names) {
    if (const std::optional<int64_t> step = StepOf(name)) steps.push_back(*step);
  }
  std::sort(steps.begin(), steps.end());
  for (size_t i = 0; i + config.keep < steps.size(); ++i) {
    if (config.keep_every > 0 && steps[i] % config.keep_every == 0) continue;
    const std::string path = JoinPath(output, StepName(steps[i]));
    if (latest != path) FATHOM_RETURN_IF_ERROR(RemoveCheckpoint(files, path));
  }
  return absl::OkStatus();
}

absl::StatusOr<Checkpoint> OpenCheckpoint(FileSystem& files, const std::string& directory) {
  const std::string path = JoinPath(directory, kManifest);
  if (!files.Exists(path)) {
    return absl::NotFoundError(
        absl::StrCat(directory, " is not a checkpoint: it has no ", kManifest));
  }
  FATHOM_ASSIGN_OR_RETURN(const std::string text, ReadFile(files, path));
  FATHOM_ASSIGN_OR_RETURN(Manifest manifest, ParseManifest(path, text));
  Checkpoint checkpoint;
  checkpoint.directory = directory;
  FATHOM_ASSIGN_OR_RETURN(checkpoint.weights, OpenTensors(files, directory, manifest, kWeights));
  FATHOM_ASSIGN_OR_RETURN(checkpoint.optimizer,
                          OpenTensors(files, directory, manifest, kOptimizer));
  checkpoint.contents = {.step = manifest.step,
                         .consumed_sequences = manifest.consumed_sequences,
                         .job_text = std::move(manifest.job_text),
                         .weights = checkpoint.weights->tensors(),
                         .optimizer = checkpoint.optimizer->tensors(),
                         .load_weights = {},
                         .load_optimizer = {},
                         .integers = std::move(manifest.integers),
                         .numbers = std::move(manifest.numbers)};
  return checkpoint;
}

}  // namespace fathom
