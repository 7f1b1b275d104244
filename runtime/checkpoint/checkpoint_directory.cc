#include "runtime/checkpoint/checkpoint_directory.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <string_view>
#include <vector>

#include "core/status.h"

namespace fathom {
namespace {

constexpr char kLatest[] = "LATEST";
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

std::string UnfinishedPath(const std::string& output, int64_t step) {
  return JoinPath(output, StepName(step)) + std::string(kUnfinished);
}

// The name of a checkpoint from that of a directory that ends in `suffix`; empty for other names.
std::string NameWithout(const std::string& name, std::string_view suffix) {
  if (!EndsWith(name, suffix)) return "";
  const std::string checkpoint = name.substr(0, name.size() - suffix.size());
  return StepOf(checkpoint).has_value() ? checkpoint : "";
}

// Removes what interrupted writers left, but for a checkpoint that was pushed aside and nothing has
// taken the place of: that gets its name back.
absl::Status RemoveLeftovers(FileSystem& files, const std::string& output) {
  FATHOM_ASSIGN_OR_RETURN(const std::vector<std::string> names, files.List(output));
  std::vector<std::string> leftovers;
  bool renamed = false;
  for (const std::string& name : names) {
    const std::string path = JoinPath(output, name);
    const std::string replaced = NameWithout(name, kReplaced);
    if (!replaced.empty() && !files.Exists(JoinPath(output, replaced))) {
      FATHOM_RETURN_IF_ERROR(files.Rename(path, JoinPath(output, replaced)));
      renamed = true;
    } else if (!replaced.empty() || !NameWithout(name, kUnfinished).empty() ||
               name.rfind(absl::StrCat(kLatest, ".tmp-"), 0) == 0) {
      leftovers.push_back(path);
    }
  }
  if (leftovers.empty() && !renamed) return absl::OkStatus();
  // A crash must not bring back an older name of what is emptied now.
  FATHOM_RETURN_IF_ERROR(files.SyncDirectory(output));
  for (const std::string& path : leftovers) FATHOM_RETURN_IF_ERROR(files.RemoveAll(path));
  return absl::OkStatus();
}

// The steps of the checkpoints in OUTPUT, ascending.
absl::StatusOr<std::vector<int64_t>> StepsIn(FileSystem& files, const std::string& output) {
  FATHOM_ASSIGN_OR_RETURN(const std::vector<std::string> names, files.List(output));
  std::vector<int64_t> steps;
  for (const std::string& name : names) {
    if (const std::optional<int64_t> step = StepOf(name)) steps.push_back(*step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

absl::StatusOr<std::optional<std::string>> HighestStep(FileSystem& files,
                                                       const std::string& output) {
  if (!files.IsDirectory(output)) return std::nullopt;
  FATHOM_ASSIGN_OR_RETURN(const std::vector<int64_t> steps, StepsIn(files, output));
  if (steps.empty()) return std::nullopt;
  return JoinPath(output, StepName(steps.back()));
}

absl::Status WriteManifest(FileSystem& files, const std::string& directory,
                           const Manifest& manifest) {
  FATHOM_ASSIGN_OR_RETURN(auto file, files.OpenForWrite(JoinPath(directory, kManifestFile)));
  FATHOM_RETURN_IF_ERROR(file->Append(FormatManifest(manifest)));
  FATHOM_RETURN_IF_ERROR(file->Sync());
  FATHOM_RETURN_IF_ERROR(file->Close());
  return files.SyncDirectory(directory);
}

// Renames a directory to `path`. What stands there is kept as `aside` and comes back on an error.
absl::Status TakePlace(FileSystem& files, const std::string& from, const std::string& path,
                       const std::string& aside) {
  const bool occupied = files.Exists(path);
  if (occupied) FATHOM_RETURN_IF_ERROR(files.Rename(path, aside));
  const absl::Status renamed = files.Rename(from, path);
  if (!renamed.ok() && occupied) files.Rename(aside, path).IgnoreError();
  return renamed;
}

}  // namespace

absl::StatusOr<std::string> BeginCheckpoint(FileSystem& files, const std::string& output,
                                            int64_t step) {
  FATHOM_RETURN_IF_ERROR(CreateDurableDirectories(files, output));
  FATHOM_RETURN_IF_ERROR(RemoveLeftovers(files, output));
  const std::string path = UnfinishedPath(output, step);
  FATHOM_RETURN_IF_ERROR(files.CreateDirectories(path));
  return path;
}

absl::Status PublishCheckpoint(FileSystem& files, const std::string& output,
                               const Manifest& manifest) {
  const std::string name = StepName(manifest.step);
  const std::string path = JoinPath(output, name);
  const std::string replaced = path + std::string(kReplaced);
  const std::string unfinished = UnfinishedPath(output, manifest.step);
  FATHOM_RETURN_IF_ERROR(WriteManifest(files, unfinished, manifest));
  FATHOM_RETURN_IF_ERROR(TakePlace(files, unfinished, path, replaced));
  FATHOM_RETURN_IF_ERROR(files.SyncDirectory(output));
  FATHOM_RETURN_IF_ERROR(
      WriteFileAtomically(files, JoinPath(output, kLatest), absl::StrCat(name, "\n")));
  // The new one is there, whatever becomes of the old one.
  files.RemoveAll(replaced).IgnoreError();
  return absl::OkStatus();
}

bool IsUnfinishedCheckpoint(const std::string& name) {
  return !NameWithout(name, kUnfinished).empty();
}

absl::Status CheckApartFromRuns(FileSystem& files, const std::string& directory) {
  std::filesystem::path path = std::filesystem::absolute(directory).lexically_normal();
  if (path.filename().empty()) path = path.parent_path();  // of a slash at the end
  for (; path.has_relative_path(); path = path.parent_path()) {
    const std::string run = path.parent_path();
    const std::string name = path.filename();
    const bool is_step = StepOf(name).has_value() || !NameWithout(name, kUnfinished).empty() ||
                         !NameWithout(name, kReplaced).empty();
    if (!is_step || !files.Exists(JoinPath(run, kLatest))) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(directory, " lies among the checkpoints of the run ", run,
                     ", which would count or remove it: name a directory elsewhere"));
  }
  return absl::OkStatus();
}

void DiscardCheckpoint(FileSystem& files, const std::string& output, int64_t step) {
  files.RemoveAll(UnfinishedPath(output, step)).IgnoreError();
}

absl::StatusOr<std::optional<std::string>> ReadLatest(FileSystem& files,
                                                      const std::string& output) {
  const std::string latest = JoinPath(output, kLatest);
  if (!files.Exists(latest)) return HighestStep(files, output);
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
  FATHOM_ASSIGN_OR_RETURN(const std::vector<int64_t> steps, StepsIn(files, output));
  // Renamed first, and that made durable, so that a crash half-way leaves no directory that looks
  // like a checkpoint and lacks files.
  std::vector<std::string> aside;
  for (size_t i = 0; i + config.keep < steps.size(); ++i) {
    if (config.keep_every > 0 && steps[i] % config.keep_every == 0) continue;
    const std::string path = JoinPath(output, StepName(steps[i]));
    if (latest == path) continue;
    aside.push_back(UnfinishedPath(output, steps[i]));
    FATHOM_RETURN_IF_ERROR(files.Rename(path, aside.back()));
  }
  if (aside.empty()) return absl::OkStatus();
  FATHOM_RETURN_IF_ERROR(files.SyncDirectory(output));
  for (const std::string& path : aside) FATHOM_RETURN_IF_ERROR(files.RemoveAll(path));
  return absl::OkStatus();
}

}  // namespace fathom
