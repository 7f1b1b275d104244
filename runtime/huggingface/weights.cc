#include "runtime/huggingface/weights.h"

#include <cstring>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "core/status.h"
#include "nlohmann/json.hpp"
#include "runtime/checkpoint/open_weights.h"
#include "runtime/checkpoint/safetensors.h"

namespace fathom {
namespace {

using Json = nlohmann::json;
using Shards = std::map<std::string, std::unique_ptr<SafetensorsFile>>;  // by file name

constexpr char kEmbedding[] = "model.embed_tokens.weight";
constexpr char kHead[] = "lm_head.weight";

// Reads the object that maps each tensor's name to its file's.
absl::StatusOr<std::map<std::string, std::string>> ReadIndex(FileSystem& files,
                                                             const std::string& path) {
  FATHOM_ASSIGN_OR_RETURN(const std::string text, ReadFile(files, path));
  const Json index = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(path, " has no object weight_map"));
  }
  std::map<std::string, std::string> shard_of;
  for (const auto& [name, shard] : index["weight_map"].items()) {
    // A name with a slash would lead out of the directory.
    const std::string file = shard.is_string() ? shard.get<std::string>() : "";
    if (file.empty() || file.find('/') != std::string::npos) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": weight_map names no file for ", name));
    }
    shard_of[name] = file;
  }
  return shard_of;
}

// Every file of the index, opened once.
absl::StatusOr<Shards> OpenShards(FileSystem& files, const std::string& directory) {
  const std::string index_path = JoinPath(directory, kShardIndexFile);
  FATHOM_ASSIGN_OR_RETURN(const auto shard_of, ReadIndex(files, index_path));
  Shards shards;
  for (const auto& [name, file] : shard_of) {
    std::unique_ptr<SafetensorsFile>& shard = shards[file];
    if (shard == nullptr) {
      FATHOM_ASSIGN_OR_RETURN(shard, SafetensorsFile::Open(files, JoinPath(directory, file)));
    }
    if (shard->Find(name) == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(index_path, " says that ", name, " is in ",
                                                     file, ", which has no such tensor"));
    }
  }
  return shards;
}

absl::StatusOr<Shards> OpenFiles(FileSystem& files, const std::string& directory) {
  const std::string whole = JoinPath(directory, kModelFile);
  if (files.Exists(whole)) {
    Shards shards;
    FATHOM_ASSIGN_OR_RETURN(shards[kModelFile], SafetensorsFile::Open(files, whole));
    return shards;
  }
  if (files.Exists(JoinPath(directory, kShardIndexFile))) return OpenShards(files, directory);
  return absl::NotFoundError(absl::StrCat(directory, " has neither ", kModelFile, " nor ",
                                          kShardIndexFile,
                                          ", and weights in other formats are not read"));
}

bool SameData(const NamedArray& a, const NamedArray& b) {
  return a.dtype == b.dtype && a.shape == b.shape && std::memcmp(a.data, b.data, a.bytes()) == 0;
}

// Gives the head the embedding's data. A file may hold both, but not as two different matrices.
absl::Status TieHead(const std::string& directory, TensorList* list) {
  const NamedArray* embedding = nullptr;
  NamedArray* head = nullptr;
  for (NamedArray& array : list->arrays) {
    if (array.name == kEmbedding) embedding = &array;
    if (array.name == kHead) head = &array;
  }
  if (embedding == nullptr) return absl::OkStatus();  // which is refused as a missing tensor
  if (head == nullptr) {
    NamedArray copy = *embedding;
    copy.name = kHead;
    list->arrays.push_back(std::move(copy));
    return absl::OkStatus();
  }
  if (SameData(*head, *embedding)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(directory, ": tie_word_embeddings is true, but ",
                                                 kHead, " is not ", kEmbedding));
}

}  // namespace

absl::StatusOr<TensorList> OpenHuggingFaceWeights(FileSystem& files, const std::string& directory,
                                                  const HuggingFaceConfig& config) {
  FATHOM_ASSIGN_OR_RETURN(Shards opened, OpenFiles(files, directory));
  const auto shards = std::make_shared<const Shards>(std::move(opened));
  TensorList list;
  std::map<std::string, std::string> file_of;
  for (const auto& [file, shard] : *shards) {
    for (const NamedArray& array : shard->tensors()) {
      const auto [first, is_new] = file_of.insert({array.name, file});
      if (!is_new) {
        return absl::InvalidArgumentError(
            absl::StrCat(directory, ": ", array.name, " is in ", first->second, " and in ", file));
      }
      list.arrays.push_back(array);
    }
  }
  list.owner = shards;
  if (config.tied) FATHOM_RETURN_IF_ERROR(TieHead(directory, &list));
  return SelectModelTensors(config.model, list, directory);
}

}  // namespace fathom
