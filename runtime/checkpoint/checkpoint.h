#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/file.h"
#include "core/job.h"
#include "runtime/checkpoint/named_array.h"
#include "runtime/checkpoint/safetensors.h"

namespace fathom {

// Checkpoints of a run: OUTPUT/step_00001000/ holds weights.safetensors, optimizer.safetensors and
// manifest.json; OUTPUT/LATEST names the newest one. docs/formats.md describes them.

// What a checkpoint holds. Arrays are not owned.
struct CheckpointContents {
  int64_t step = 0;                // steps done
  int64_t consumed_sequences = 0;  // which with data.seed is the place in the order of data
  std::string job_text;            // Job::text
  std::vector<NamedArray> weights;
  std::vector<NamedArray> optimizer;
  // For writing arrays one at a time; empty: from their own data.
  ArrayLoader load_weights = {};
  ArrayLoader load_optimizer = {};
  // Whatever else resuming needs: counters and small numbers, exact in the file.
  std::map<std::string, int64_t> integers;
  std::map<std::string, double> numbers;
};

// Writes OUTPUT/step_NNNNNNNN aside, makes it durable, renames it and then points LATEST to it: at
// any moment LATEST names a whole checkpoint. A directory of the same step is replaced. What
// crashes of earlier writers left behind is removed.
absl::Status WriteCheckpoint(FileSystem& files, const std::string& output,
                             const CheckpointContents& contents);

// The directory of the checkpoint that LATEST names; nullopt when there is no LATEST. DataLoss when
// it names what is not there.
absl::StatusOr<std::optional<std::string>> ReadLatest(FileSystem& files, const std::string& output);

// Removes old checkpoints: the `keep` newest stay (0: all), as does every one whose step is a
// multiple of `keep_every` (0: none besides), and the one that LATEST names.
absl::Status RemoveOldCheckpoints(FileSystem& files, const std::string& output,
                                  const CheckpointConfig& config);

// A checkpoint whose files have been checked against the manifest. Arrays in `contents` point into
// the mapped files and live as long as this object.
struct Checkpoint {
  std::string directory;
  CheckpointContents contents;
  std::unique_ptr<SafetensorsFile> weights;
  std::unique_ptr<SafetensorsFile> optimizer;
};

// Opens a checkpoint's directory. NotFound when there is none, FailedPrecondition, naming both
// versions, for a format that is newer than this program, DataLoss for damage of any kind.
absl::StatusOr<Checkpoint> OpenCheckpoint(FileSystem& files, const std::string& directory);

}  // namespace fathom
