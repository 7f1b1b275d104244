#include "launch/inspect_checkpoint.h"

#include <cstdio>
#include <optional>
#include <vector>

#include "absl/strings/str_format.h"
#include "core/job.h"
#include "core/status.h"
#include "nlohmann/json.hpp"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/open_weights.h"

namespace fathom {
namespace {

using Json = nlohmann::ordered_json;

// What is damaged; absent when that was not asked for.
using Problems = std::optional<std::vector<std::string>>;

int64_t CountBlocks(const Manifest& manifest) {
  int64_t blocks = 0;
  for (const ManifestFile& file : manifest.files) blocks += file.blocks.size();
  return blocks;
}

struct Totals {
  int64_t tensors = 0, elements = 0, bytes = 0;
};

Totals TotalsOf(const TensorSource& source) {
  Totals totals;
  for (const NamedArray& tensor : source.tensors()) {
    ++totals.tensors;
    totals.elements += tensor.shape.elements();
    totals.bytes += tensor.bytes();
  }
  return totals;
}

// The job's name; empty for a job that this program does not understand.
std::string JobName(const Checkpoint& checkpoint) {
  const auto job = ParseJob(checkpoint.manifest->job_text, checkpoint.directory, {});
  return job.ok() ? job->name : "";
}

const char* KindName(TensorKind kind) {
  return kind == TensorKind::kWeight ? "weight" : "optimizer";
}

Json SliceJson(const Manifest& manifest, const ManifestSlice& slice) {
  const auto& [part, range] = slice.slice;
  Json json = {{"file", manifest.files[slice.file].name}, {"offset", slice.offset}};
  if (!part.whole()) json["box"] = {{"dim", part.dim}, {"begin", part.begin}, {"end", part.end}};
  json["range"] = {{"begin", range.begin}, {"end", range.end}};
  return json;
}

Json TensorJson(const Manifest& manifest, const ManifestTensor& tensor) {
  Json shape = Json::array(), slices = Json::array();
  for (int i = 0; i < tensor.shape.rank(); ++i) shape.push_back(tensor.shape[i]);
  for (const ManifestSlice& slice : tensor.slices) slices.push_back(SliceJson(manifest, slice));
  return {{"name", tensor.name},
          {"kind", KindName(tensor.kind)},
          {"dtype", std::string(Name(tensor.dtype))},
          {"shape", shape},
          {"slices", slices}};
}

void PrintJson(const Checkpoint& checkpoint, const Problems& problems) {
  const Manifest& manifest = *checkpoint.manifest;
  const auto totals = [](const TensorSource& source) -> Json {
    const Totals of = TotalsOf(source);
    return {{"tensors", of.tensors}, {"elements", of.elements}, {"bytes", of.bytes}};
  };
  Json json = {{"checkpoint", checkpoint.directory},
               {"step", manifest.step},
               {"consumed_sequences", manifest.consumed_sequences},
               {"job", JobName(checkpoint)},
               {"mesh",
                {{"pipeline", manifest.mesh.pipeline},
                 {"data", manifest.mesh.data},
                 {"context", manifest.mesh.context},
                 {"tensor", manifest.mesh.tensor}}},
               {"weights", totals(*checkpoint.weights)},
               {"optimizer", totals(*checkpoint.optimizer)},
               {"state", Json(manifest.integers)},
               {"files", Json::array()},
               {"tensors", Json::array()}};
  for (const auto& [name, value] : manifest.numbers) json["state"][name] = value;
  for (const ManifestFile& file : manifest.files) {
    json["files"].push_back(
        {{"name", file.name}, {"size", file.size}, {"blocks", file.blocks.size()}});
  }
  for (const ManifestTensor& tensor : manifest.tensors) {
    json["tensors"].push_back(TensorJson(manifest, tensor));
  }
  if (problems.has_value()) {
    json["verified"] = {{"blocks", CountBlocks(manifest)}, {"problems", *problems}};
  }
  std::printf("%s\n", json.dump(2).c_str());
}

void PrintTotals(const char* what, const TensorSource& source) {
  const Totals of = TotalsOf(source);
  std::printf("%-10s  %lld tensors, %lld elements, %.2f MB\n", what,
              static_cast<long long>(of.tensors), static_cast<long long>(of.elements),
              static_cast<double>(of.bytes) / 1e6);
}

void PrintText(const Checkpoint& checkpoint, const Problems& problems) {
  const Manifest& manifest = *checkpoint.manifest;
  std::printf("checkpoint  %s\n", checkpoint.directory.c_str());
  const std::string job = JobName(checkpoint);
  if (!job.empty()) std::printf("job         %s\n", job.c_str());
  std::printf("step        %lld, %lld sequences consumed\n", static_cast<long long>(manifest.step),
              static_cast<long long>(manifest.consumed_sequences));
  std::printf("ranks       %s\n", manifest.mesh.ToString().c_str());
  PrintTotals("weights", *checkpoint.weights);
  PrintTotals("optimizer", *checkpoint.optimizer);
  std::printf("files\n");
  for (const ManifestFile& file : manifest.files) {
    std::printf("  %-28s  %.2f MB\n", file.name.c_str(), static_cast<double>(file.size) / 1e6);
  }
  std::printf("tensors\n");
  for (const ManifestTensor& tensor : manifest.tensors) {
    std::printf("  %-9s  %s  %s %s in %zu %s\n", KindName(tensor.kind), tensor.name.c_str(),
                std::string(Name(tensor.dtype)).c_str(), tensor.shape.ToString().c_str(),
                tensor.slices.size(), tensor.slices.size() == 1 ? "slice" : "slices");
  }
  if (!problems.has_value()) return;
  for (const std::string& problem : *problems) std::printf("%s\n", problem.c_str());
  if (problems->empty()) {
    std::printf("verified: all %lld blocks of %zu files match their checksums\n",
                static_cast<long long>(CountBlocks(manifest)), manifest.files.size());
  }
}

}  // namespace

absl::Status InspectCheckpoint(const std::string& directory, bool json, bool verify) {
  FileSystem& files = PosixFileSystem();
  FATHOM_ASSIGN_OR_RETURN(const std::string found, FindCheckpoint(files, directory));
  FATHOM_ASSIGN_OR_RETURN(const Checkpoint checkpoint, OpenCheckpoint(files, found));
  Problems problems;
  if (verify) problems = VerifyCheckpoint(checkpoint);
  if (json) {
    PrintJson(checkpoint, problems);
  } else {
    PrintText(checkpoint, problems);
  }
  if (!problems.has_value() || problems->empty()) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(found, " is damaged in ", problems->size(),
                                          problems->size() == 1 ? " place" : " places"));
}

}  // namespace fathom
