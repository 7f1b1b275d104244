#include "runtime/huggingface/model_files.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "core/status.h"
#include "nlohmann/json.hpp"
#include "runtime/checkpoint/array_values.h"
#include "runtime/checkpoint/open_weights.h"
#include "runtime/checkpoint/safetensors.h"
#include "runtime/huggingface/weights.h"

namespace fathom {
namespace {

// Tensors begin to end - 1 of the list, in one file.
struct Shard {
  size_t begin = 0;
  size_t end = 0;
  int64_t bytes = 0;
};

std::vector<Shard> SplitIntoShards(const std::vector<NamedArray>& written, int64_t shard_bytes) {
  std::vector<Shard> shards = {{}};
  for (size_t i = 0; i < written.size(); ++i) {
    const int64_t bytes = written[i].bytes();
    if (shards.back().bytes > 0 && shards.back().bytes + bytes > shard_bytes) {
      shards.push_back({.begin = i, .end = i});
    }
    shards.back().end = i + 1;
    shards.back().bytes += bytes;
  }
  return shards;
}

absl::Status WriteShard(FileSystem& files, const std::string& path, const TensorList& tensors,
                        const std::vector<NamedArray>& written, const Shard& shard) {
  std::vector<char> converted;
  const auto load = [&](size_t i) -> absl::StatusOr<const void*> {
    NamedArray array = tensors.arrays[shard.begin + i];
    FATHOM_ASSIGN_OR_RETURN(array.data, tensors.Load(shard.begin + i));
    const DType dtype = written[shard.begin + i].dtype;
    if (dtype == array.dtype) return array.data;
    converted = ConvertArray(array, dtype);
    return converted.data();
  };
  const std::vector<NamedArray> arrays(written.begin() + shard.begin, written.begin() + shard.end);
  // transformers asks for this word.
  return WriteSafetensorsFile(files, path, arrays, {{"format", "pt"}}, load);
}

}  // namespace

DType WrittenDType(const NamedArray& tensor, const std::optional<DType>& dtype) {
  const bool chooses = absl::EndsWith(tensor.name, ".mlp.gate.weight") ||
                       absl::EndsWith(tensor.name, ".mlp.gate.e_score_correction_bias");
  const DType asked = dtype.value_or(tensor.dtype);
  if (!chooses || asked != DType::kBFloat16) return asked;
  return tensor.dtype == DType::kBFloat16 ? DType::kBFloat16 : DType::kFloat32;
}

absl::StatusOr<int64_t> WriteModelFiles(FileSystem& files, const std::string& directory,
                                        const TensorList& tensors,
                                        const ModelFileOptions& options) {
  std::vector<NamedArray> written = tensors.arrays;
  for (NamedArray& array : written) array.dtype = WrittenDType(array, options.dtype);
  const std::vector<Shard> shards = SplitIntoShards(written, options.shard_bytes);
  if (shards.size() == 1) {
    FATHOM_RETURN_IF_ERROR(
        WriteShard(files, JoinPath(directory, kModelFile), tensors, written, shards[0]));
    return 1;
  }
  int64_t bytes = 0;
  nlohmann::json weight_map;
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string name =
        absl::StrFormat("model-%05d-of-%05d.safetensors", i + 1, shards.size());
    FATHOM_RETURN_IF_ERROR(
        WriteShard(files, JoinPath(directory, name), tensors, written, shards[i]));
    for (size_t j = shards[i].begin; j < shards[i].end; ++j) weight_map[written[j].name] = name;
    bytes += shards[i].bytes;
  }
  const nlohmann::json index = {{"metadata", {{"total_size", bytes}}}, {"weight_map", weight_map}};
  FATHOM_RETURN_IF_ERROR(
      WriteFileAtomically(files, JoinPath(directory, kShardIndexFile), index.dump(2) + "\n"));
  return shards.size();
}

}  // namespace fathom
