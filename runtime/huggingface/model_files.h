#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "core/file.h"
#include "runtime/huggingface/model_tensors.h"

namespace fathom {

struct ModelFileOptions {
  // What weights are rounded or widened to; absent: they stay as they are. The gates of experts and
  // their selection biases are never rounded to bfloat16, as in transformers: choices hang on them.
  std::optional<DType> dtype;
  int64_t shard_bytes = 0;  // of tensors in one file, unless a single tensor has more
};

// The dtype that a tensor is written in.
DType WrittenDType(const NamedArray& tensor, const std::optional<DType>& dtype);

// Writes all tensors, in their order, to `directory`, which exists: to model.safetensors, or when
// they take more than `shard_bytes` to model-00001-of-00002.safetensors and so on, with
// model.safetensors.index.json. One converted tensor is in memory at a time. The number of files
// with tensors.
absl::StatusOr<int64_t> WriteModelFiles(FileSystem& files, const std::string& directory,
                                        const TensorList& tensors, const ModelFileOptions& options);

}  // namespace fathom
