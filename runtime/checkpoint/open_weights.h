#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "core/file.h"
#include "runtime/checkpoint/tensor_source.h"

namespace fathom {

// A checkpoint's directory, from itself or from its run's, which stands for the newest one. Whether
// a checkpoint is there shows when it is opened.
absl::StatusOr<std::string> FindCheckpoint(FileSystem& files, const std::string& directory);

// The weights that `path` means: a safetensors file, a checkpoint, a run (its newest checkpoint),
// or a directory with model.safetensors, as `fathom convert` writes. NotFound when it is none of
// these.
absl::StatusOr<std::unique_ptr<TensorSource>> OpenWeights(FileSystem& files,
                                                          const std::string& path);

// Of the weights in what `fathom convert` and other programs write.
inline constexpr char kModelFile[] = "model.safetensors";

}  // namespace fathom
