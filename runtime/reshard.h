#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/dtype.h"
#include "core/file.h"

namespace fathom {

struct ReshardOptions {
  // Settings of the job's `parallel`, as "tensor=2". Those that are not named stay as they are.
  std::vector<std::string> layout;
  // Without the optimizer's state: to start runs from, not to continue one.
  bool weights_only = false;
  // What weights are rounded or widened to, as WrittenDType has it; only with `weights_only`.
  std::optional<DType> dtype;
};

// Writes the checkpoint that `from` names (or the newest one of a run) once more, to the new or
// empty directory `output` of a run, in the shards that the ranks of another layout would have
// written: file by file the same bytes. Of one shard, one piece of a tensor is in memory at a time.
// `log` hears how far it is. The layout in words. InvalidArgument for a layout that the job cannot
// have, AlreadyExists when `output` holds anything, DataLoss for a damaged checkpoint; `output` is
// whole or as it was.
absl::StatusOr<std::string> ReshardCheckpoint(FileSystem& files, const std::string& from,
                                              const std::string& output,
                                              const ReshardOptions& options,
                                              const std::function<void(const std::string&)>& log);

}  // namespace fathom
