#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/file.h"
#include "runtime/checkpoint/checkpoint_directory.h"
#include "runtime/checkpoint/manifest.h"
#include "runtime/checkpoint/named_array.h"
#include "runtime/checkpoint/tensor_source.h"

namespace fathom {

class ShardFiles;

// A checkpoint whose manifest has been checked. Shards are opened when something is read of them,
// and each of their blocks is checked when it is touched first. Thread-safe.
struct Checkpoint {
  std::string directory;
  std::shared_ptr<const Manifest> manifest;
  std::unique_ptr<TensorSource> weights;
  std::unique_ptr<TensorSource> optimizer;
  std::shared_ptr<ShardFiles> shards;  // what both read from
};

// Opens a checkpoint's directory. NotFound when there is none, FailedPrecondition, naming both
// versions, for another version of the format, DataLoss for a damaged manifest.
absl::StatusOr<Checkpoint> OpenCheckpoint(FileSystem& files, const std::string& directory);

// Reads every block of every shard. A sentence for each shard that is missing or of another size,
// and for each damaged block, naming the file and a tensor in it; none: all is as it was written.
std::vector<std::string> VerifyCheckpoint(const Checkpoint& checkpoint);

// What a checkpoint holds when one process has all of it. Arrays are not owned.
struct CheckpointContents {
  int64_t step = 0;                // steps done
  int64_t consumed_sequences = 0;  // which with data.seed is the place in the order of data
  std::string job_text;            // Job::text
  std::vector<NamedArray> weights;
  std::vector<NamedArray> optimizer;
  // Whatever else resuming needs: counters and small numbers, exact in the file.
  std::map<std::string, int64_t> integers;
  std::map<std::string, double> numbers;
};

// A checkpoint from one process.
absl::Status WriteCheckpoint(FileSystem& files, const std::string& output,
                             const CheckpointContents& contents);

}  // namespace fathom
