#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "core/file.h"
#include "runtime/huggingface/config.h"
#include "runtime/huggingface/model_tensors.h"

namespace fathom {

// Which tensor lies in which shard, when there are several.
inline constexpr char kShardIndexFile[] = "model.safetensors.index.json";

// The tensors of the model in a Hugging Face directory: of model.safetensors, or else of the shards
// that model.safetensors.index.json lists. Files are mapped, and read only as tensors are. Where
// the head is tied to the embedding, lm_head.weight is the same data. NotFound for missing files;
// InvalidArgument, in one sentence that names file or directory and tensor, for an index that is
// wrong and for tensors that are not those of the model.
absl::StatusOr<TensorList> OpenHuggingFaceWeights(FileSystem& files, const std::string& directory,
                                                  const HuggingFaceConfig& config);

}  // namespace fathom
