#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "core/file.h"

namespace fathom {

// AlreadyExists unless `directory` is missing or empty; InvalidArgument when it lies where a run
// keeps its checkpoints.
absl::Status CheckNewDirectory(FileSystem& files, const std::string& directory);

// Lets `write` fill a directory that stands beside `directory`, by a name of its own, and renames
// it: `directory`, which is missing or empty, is whole or as it was. An error leaves nothing,
// unless it is that the new name may not outlive a crash of the machine.
absl::Status WriteNewDirectory(FileSystem& files, std::string directory,
                               const std::function<absl::Status(const std::string& path)>& write);

}  // namespace fathom
