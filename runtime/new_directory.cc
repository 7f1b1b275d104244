#include "runtime/new_directory.h"

#include <filesystem>
#include <vector>

#include "core/status.h"
#include "runtime/checkpoint/checkpoint_directory.h"

namespace fathom {

absl::Status CheckNewDirectory(FileSystem& files, const std::string& directory) {
  FATHOM_RETURN_IF_ERROR(CheckApartFromRuns(files, directory));
  if (!files.Exists(directory)) return absl::OkStatus();
  if (files.IsDirectory(directory)) {
    FATHOM_ASSIGN_OR_RETURN(const std::vector<std::string> names, files.List(directory));
    if (names.empty()) return absl::OkStatus();
  }
  return absl::AlreadyExistsError(
      absl::StrCat(directory, " exists already, and nothing is overwritten: name a new directory"));
}

absl::Status WriteNewDirectory(FileSystem& files, std::string directory,
                               const std::function<absl::Status(const std::string& path)>& write) {
  // With a slash behind, beside would be inside.
  while (directory.size() > 1 && directory.back() == '/') directory.pop_back();
  const std::string temporary = TemporaryPath(directory);
  absl::Status status = files.CreateDirectories(temporary);
  if (status.ok()) status = write(temporary);
  if (status.ok()) status = files.Rename(temporary, directory);
  if (!status.ok()) {
    files.RemoveAll(temporary).IgnoreError();
    return status;
  }
  const std::string parent = std::filesystem::path(directory).parent_path();
  return files.SyncDirectory(parent.empty() ? "." : parent);
}

}  // namespace fathom
