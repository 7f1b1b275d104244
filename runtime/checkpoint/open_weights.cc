#include "runtime/checkpoint/open_weights.h"

#include <optional>

#include "core/status.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/safetensors.h"

namespace fathom {

absl::StatusOr<std::string> FindCheckpoint(FileSystem& files, const std::string& directory) {
  FATHOM_ASSIGN_OR_RETURN(const std::optional<std::string> latest, ReadLatest(files, directory));
  return latest.value_or(directory);
}

absl::StatusOr<std::unique_ptr<TensorSource>> OpenWeights(FileSystem& files,
                                                          const std::string& path) {
  if (!files.IsDirectory(path)) return SafetensorsFile::Open(files, path);
  const std::string model = JoinPath(path, kModelFile);
  if (files.Exists(model)) return SafetensorsFile::Open(files, model);
  FATHOM_ASSIGN_OR_RETURN(const std::string directory, FindCheckpoint(files, path));
  absl::StatusOr<Checkpoint> checkpoint = OpenCheckpoint(files, directory);
  if (absl::IsNotFound(checkpoint.status())) {
    return absl::NotFoundError(absl::StrCat(
        path, " holds no weights: a safetensors file, a checkpoint or a directory with ",
        kModelFile, " is needed"));
  }
  if (!checkpoint.ok()) return checkpoint.status();
  return std::move(checkpoint->weights);
}

}  // namespace fathom
