#include "runtime/huggingface/model_files.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "core/check.h"
#include "core/status.h"
#include "nlohmann/json.hpp"
#include "runtime/checkpoint/array_values.h"
#include "runtime/checkpoint/open_weights.h"
#include "runtime/checkpoint/safetensors.h"
#include "runtime/huggingface/weights.h"

namespace fathom {
namespace {

template <class T>
void Store(const double* values, int64_t count, char* out) {
  for (int64_t i = 0; i < count; ++i) {
    const T value(values[i]);
    std::memcpy(out + i * sizeof(T), &value, sizeof(T));
  }
}

void StoreAs(DType dtype, const double* values, int64_t count, char* out) {
  switch (dtype) {
    case DType::kFloat32:
      return Store<float>(values, count, out);
    case DType::kFloat64:
      return Store<double>(values, count, out);
    case DType::kBFloat16:
      return Store<BFloat16>(values, count, out);
    case DType::kInt32:
    case DType::kInt64:
      break;
  }
  FATHOM_CHECK(false) << "weights are not written as " << Name(dtype);
}

// The elements of `array` in another dtype.
std::vector<char> Convert(const NamedArray& array, DType dtype) {
  constexpr int64_t kPiece = 1 << 16;
  const int64_t elements = array.shape.elements();
  std::vector<double> values(std::min(elements, kPiece));
  std::vector<char> converted(elements * SizeOf(dtype));
  for (int64_t begin = 0; begin < elements; begin += kPiece) {
    const int64_t count = std::min(kPiece, elements - begin);
    ReadElements(array, begin, count, values.data());
    StoreAs(dtype, values.data(), count, converted.data() + begin * SizeOf(dtype));
  }
  return converted;
}

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
    converted = Convert(array, dtype);
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
