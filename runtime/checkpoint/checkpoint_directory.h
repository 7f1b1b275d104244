#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "core/file.h"
#include "core/job.h"
#include "runtime/checkpoint/manifest.h"

namespace fathom {

// The directories of a run's checkpoints: OUTPUT/step_00001000 with the shards and manifest.json,
// and OUTPUT/LATEST, which names the newest one. Saving is Begin, then WriteShards by every rank
// into the directory that it named, then Publish or Discard. At any moment, also after a crash of
// the machine, LATEST names a whole checkpoint.

inline constexpr char kManifestFile[] = "manifest.json";

// Creates OUTPUT and, empty, the directory that the checkpoint of `step` is written in. Removes
// what crashes of earlier writers left behind.
absl::StatusOr<std::string> BeginCheckpoint(FileSystem& files, const std::string& output,
                                            int64_t step);

// Writes the manifest, renames the directory of manifest.step, in which all shards are durable, and
// points LATEST to it. A checkpoint of the same step is replaced. On an error LATEST still names a
// whole checkpoint, and the older ones are as they were.
absl::Status PublishCheckpoint(FileSystem& files, const std::string& output,
                               const Manifest& manifest);

// Whether a name in OUTPUT is that of a directory that BeginCheckpoint has made, which is no
// checkpoint unless it is published.
bool IsUnfinishedCheckpoint(const std::string& name);

// InvalidArgument for a directory that lies among the checkpoints of a run, or in one of them,
// where the run would count or remove it.
absl::Status CheckApartFromRuns(FileSystem& files, const std::string& directory);

// Removes what a save that failed has written, as far as files can be removed.
void DiscardCheckpoint(FileSystem& files, const std::string& output, int64_t step);

// The directory of the checkpoint that LATEST names. Without LATEST, which a crash in the first
// save may leave, the one of the highest step: what has its name is whole. nullopt when there is
// none; DataLoss when LATEST names what is not there.
absl::StatusOr<std::optional<std::string>> ReadLatest(FileSystem& files, const std::string& output);

// Removes old checkpoints: the `keep` newest stay (0: all), as does every one whose step is a
// multiple of `keep_every` (0: none besides), and the one that LATEST names.
absl::Status RemoveOldCheckpoints(FileSystem& files, const std::string& output,
                                  const CheckpointConfig& config);

}  // namespace fathom
