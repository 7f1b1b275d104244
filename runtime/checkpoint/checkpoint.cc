#include "runtime/checkpoint/checkpoint.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/status.h"
#include "runtime/checkpoint/shard_files.h"
#include "runtime/checkpoint/shard_writer.h"

namespace fathom {
namespace {

// The tensors of one kind.
class ShardedTensors final : public TensorSource {
 public:
  ShardedTensors(std::shared_ptr<const Manifest> manifest, std::shared_ptr<ShardFiles> shards,
                 TensorKind kind)
      : TensorSource(shards->directory()),
        manifest_(std::move(manifest)),
        shards_(std::move(shards)) {
    std::vector<NamedArray> arrays;
    for (const ManifestTensor& tensor : manifest_->tensors) {
      if (tensor.kind != kind) continue;
      arrays.push_back(
          {.name = tensor.name, .dtype = tensor.dtype, .shape = tensor.shape, .data = nullptr});
      recorded_.push_back(&tensor);
    }
    SetTensors(std::move(arrays));
  }

  absl::Status ReadSlice(const NamedArray& tensor, const TensorSlice& slice,
                         void* out) const override {
    const ManifestTensor& recorded = *recorded_[IndexOf(tensor)];
    const std::vector<SliceRun> wanted = RunsOf(tensor.shape, slice);
    int64_t missing = slice.elements();
    for (const ManifestSlice& stored : recorded.slices) {
      absl::Status status;
      VisitOverlap(wanted, RunsOf(tensor.shape, stored.slice),
                   [&](int64_t to, int64_t from, int64_t count) {
                     missing -= count;
                     if (status.ok()) status = Copy(recorded, stored, from, count, to, out);
                   });
      FATHOM_RETURN_IF_ERROR(status);
    }
    if (missing == 0) return absl::OkStatus();
    return absl::DataLossError(absl::StrCat(JoinPath(path(), kManifestFile),
                                            " is damaged: the slices of ", tensor.name,
                                            " do not make it up"));
  }

 private:
  // `count` elements from element `from` of a stored slice to element `to` of `out`, block by
  // block, so that they are copied while the check has them in the cache.
  absl::Status Copy(const ManifestTensor& tensor, const ManifestSlice& stored, int64_t from,
                    int64_t count, int64_t to, void* out) const {
    const int64_t size = SizeOf(tensor.dtype);
    char* target = static_cast<char*>(out) + to * size;
    int64_t begin = stored.offset + from * size;
    const int64_t end = begin + count * size;
    while (begin < end) {
      const int64_t next = std::min(end, (begin / kBlockBytes + 1) * kBlockBytes);
      FATHOM_ASSIGN_OR_RETURN(const std::string_view bytes,
                              shards_->Read(stored.file, begin, next, tensor.name));
      std::memcpy(target, bytes.data(), bytes.size());
      target += bytes.size();
      begin = next;
    }
    return absl::OkStatus();
  }

  std::shared_ptr<const Manifest> manifest_;
  std::shared_ptr<ShardFiles> shards_;
  std::vector<const ManifestTensor*> recorded_;  // of tensors()
};

// What stands where in one file, in its order.
struct Extent {
  int64_t begin, end;
  std::string name;
};

std::vector<std::vector<Extent>> ExtentsOf(const Manifest& manifest) {
  std::vector<std::vector<Extent>> extents(manifest.files.size());
  for (const ManifestTensor& tensor : manifest.tensors) {
    for (const ManifestSlice& slice : tensor.slices) {
      const int64_t bytes = slice.slice.elements() * SizeOf(tensor.dtype);
      extents[slice.file].push_back({slice.offset, slice.offset + bytes, tensor.name});
    }
  }
  for (std::vector<Extent>& of_file : extents) {
    std::sort(of_file.begin(), of_file.end(),
              [](const Extent& a, const Extent& b) { return a.begin < b.begin; });
  }
  return extents;
}

// The tensors that bytes begin to end - 1 hold, for a message: "a and 3 more tensors".
std::string NamesWithin(const std::vector<Extent>& extents, int64_t begin, int64_t end) {
  std::string first;
  int64_t more = 0;
  for (const Extent& extent : extents) {
    if (extent.end <= begin || extent.begin >= end) continue;
    if (first.empty()) {
      first = extent.name;
    } else {
      ++more;
    }
  }
  if (first.empty()) return "the header";
  return more == 0 ? first : absl::StrCat(first, " and ", more, " more tensors");
}

void AppendPieces(TensorKind kind, const std::vector<NamedArray>& arrays,
                  std::vector<ShardPiece>* pieces) {
  for (const NamedArray& array : arrays) {
    pieces->push_back({.name = array.name,
                       .kind = kind,
                       .dtype = array.dtype,
                       .whole = array.shape,
                       .slice = TensorSlice::Whole(array.shape),
                       .data = array.data});
  }
}

}  // namespace

absl::StatusOr<Checkpoint> OpenCheckpoint(FileSystem& files, const std::string& directory) {
  const std::string path = JoinPath(directory, kManifestFile);
  if (!files.Exists(directory)) {
    return absl::NotFoundError(absl::StrCat("there is no ", directory));
  }
  if (!files.Exists(path)) {
    return absl::NotFoundError(
        absl::StrCat(directory, " is not a checkpoint: it has no ", kManifestFile));
  }
  FATHOM_ASSIGN_OR_RETURN(const std::string text, ReadFile(files, path));
  FATHOM_ASSIGN_OR_RETURN(Manifest parsed, ParseManifest(path, text));
  Checkpoint checkpoint;
  checkpoint.directory = directory;
  checkpoint.manifest = std::make_shared<const Manifest>(std::move(parsed));
  checkpoint.shards = std::make_shared<ShardFiles>(files, directory, checkpoint.manifest);
  checkpoint.weights =
      std::make_unique<ShardedTensors>(checkpoint.manifest, checkpoint.shards, TensorKind::kWeight);
  checkpoint.optimizer = std::make_unique<ShardedTensors>(checkpoint.manifest, checkpoint.shards,
                                                          TensorKind::kOptimizer);
  return checkpoint;
}

std::vector<std::string> VerifyCheckpoint(const Checkpoint& checkpoint) {
  std::vector<std::string> problems;
  const Manifest& manifest = *checkpoint.manifest;
  const std::vector<std::vector<Extent>> extents = ExtentsOf(manifest);
  for (size_t i = 0; i < manifest.files.size(); ++i) {
    const ManifestFile& file = manifest.files[i];
    for (size_t block = 0; block < file.blocks.size(); ++block) {
      const int64_t begin = static_cast<int64_t>(block) * kBlockBytes;
      const int64_t end = std::min(file.size, begin + kBlockBytes);
      const auto read = checkpoint.shards->Read(static_cast<int>(i), begin, end,
                                                NamesWithin(extents[i], begin, end));
      if (read.ok()) continue;
      problems.emplace_back(read.status().message());
      // The whole file is unusable, not this block alone.
      if (!checkpoint.shards->IsOpen(static_cast<int>(i))) break;
    }
  }
  return problems;
}

absl::Status WriteCheckpoint(FileSystem& files, const std::string& output,
                             const CheckpointContents& contents) {
  Manifest manifest{.step = contents.step,
                    .consumed_sequences = contents.consumed_sequences,
                    .job_text = contents.job_text,
                    .mesh = {},
                    .files = {},
                    .tensors = {},
                    .integers = contents.integers,
                    .numbers = contents.numbers};
  std::vector<ShardPiece> pieces;
  AppendPieces(TensorKind::kWeight, contents.weights, &pieces);
  AppendPieces(TensorKind::kOptimizer, contents.optimizer, &pieces);
  FATHOM_ASSIGN_OR_RETURN(const std::string directory,
                          BeginCheckpoint(files, output, contents.step));
  const auto write = [&]() -> absl::Status {
    FATHOM_ASSIGN_OR_RETURN(Manifest part, WriteShards(files, directory, /*rank=*/0, pieces));
    manifest.files = std::move(part.files);
    manifest.tensors = std::move(part.tensors);
    return PublishCheckpoint(files, output, manifest);
  };
  const absl::Status status = write();
  if (!status.ok()) DiscardCheckpoint(files, output, contents.step);
  return status;
}

}  // namespace fathom
