#include "runtime/reshard.h"

#include <chrono>
#include <memory>
#include <set>
#include <utility>

#include "core/job.h"
#include "core/status.h"
#include "parallel/rank_groups.h"
#include "runtime/checkpoint/array_values.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/checkpoint_directory.h"
#include "runtime/checkpoint/open_weights.h"
#include "runtime/checkpoint/shard_writer.h"
#include "runtime/huggingface/model_files.h"
#include "runtime/new_directory.h"
#include "runtime/run_state.h"
#include "runtime/shard_pieces.h"
#include "runtime/training_model.h"

namespace fathom {
namespace {

constexpr std::chrono::seconds kBetweenReports{2};

// The checkpoint's job in another layout.
absl::StatusOr<Job> JobInLayout(const Checkpoint& checkpoint,
                                const std::vector<std::string>& layout) {
  std::vector<std::string> settings;
  for (const std::string& setting : layout) settings.push_back(absl::StrCat("parallel.", setting));
  FATHOM_ASSIGN_OR_RETURN(const Job job,
                          ParseJob(checkpoint.manifest->job_text,
                                   absl::StrCat("the job of ", checkpoint.directory), settings));
  FATHOM_RETURN_IF_ERROR(CheckLayoutOf(job));
  return job;
}

// What a rank of the job would save, without the data. It is found by the code that trains, on the
// dry device.
absl::StatusOr<std::vector<ShardPiece>> PiecesOfRank(const Job& job, int rank, bool weights_only) {
  const std::unique_ptr<Device> device = NewDryDevice();
  FATHOM_ASSIGN_OR_RETURN(const std::unique_ptr<RankGroups> groups,
                          RankGroups::Dry(MeshOf(job.parallel), rank, ExpertSizesOf(job.parallel)));
  FATHOM_ASSIGN_OR_RETURN(const std::unique_ptr<TrainingModel> training,
                          TrainingModel::Create(job, *groups, *device));
  std::vector<ShardPiece> pieces;
  AppendShardPieces(TensorKind::kWeight, WeightPieces(training->parameters(), *groups), &pieces);
  if (!weights_only) {
    AppendShardPieces(TensorKind::kOptimizer, OptimizerPieces(training->optimizer(), *groups),
                      &pieces);
  }
  return pieces;
}

// Writes the shards of all ranks of a job from those of a checkpoint.
class Resharding {
 public:
  Resharding(FileSystem& files, const Checkpoint& checkpoint, const ReshardOptions& options,
             const std::function<void(const std::string&)>& log)
      : files_(files), checkpoint_(checkpoint), options_(options), log_(log) {}

  absl::Status Write(const Job& job, const std::string& directory, Manifest* manifest) {
    const int64_t ranks = job.parallel.ranks();
    auto reported = std::chrono::steady_clock::now();
    for (int rank = 0; rank < ranks; ++rank) {
      FATHOM_ASSIGN_OR_RETURN(const Manifest part, WriteRank(job, rank, directory));
      FATHOM_RETURN_IF_ERROR(AddPart(PackPart(part), manifest));
      const auto now = std::chrono::steady_clock::now();
      if (now - reported < kBetweenReports) continue;
      log_(absl::StrCat(rank + 1, " of ", ranks, " ranks are written"));
      reported = now;
    }
    FATHOM_RETURN_IF_ERROR(CheckAllTaken(*checkpoint_.weights));
    return options_.weights_only ? absl::OkStatus() : CheckAllTaken(*checkpoint_.optimizer);
  }

 private:
  absl::StatusOr<Manifest> WriteRank(const Job& job, int rank, const std::string& directory) {
    FATHOM_ASSIGN_OR_RETURN(std::vector<ShardPiece> pieces,
                            PiecesOfRank(job, rank, options_.weights_only));
    std::vector<const NamedArray*> stored;
    for (ShardPiece& piece : pieces) {
      FATHOM_ASSIGN_OR_RETURN(const NamedArray* tensor, Find(piece));
      piece.dtype = WrittenDType(*tensor, options_.dtype);
      stored.push_back(tensor);
      taken_.insert(tensor->name);
    }
    return WriteShards(files_, directory, rank, pieces,
                       [&](size_t i) { return Load(pieces[i], *stored[i]); });
  }

  const TensorSource& SourceOf(TensorKind kind) const {
    return kind == TensorKind::kWeight ? *checkpoint_.weights : *checkpoint_.optimizer;
  }

  absl::StatusOr<const NamedArray*> Find(const ShardPiece& piece) const {
    const NamedArray* tensor = SourceOf(piece.kind).Find(piece.name);
    if (tensor != nullptr && tensor->shape == piece.whole) return tensor;
    return absl::DataLossError(absl::StrCat(
        checkpoint_.directory, " is not a checkpoint of its job: ", piece.name,
        tensor == nullptr ? std::string(" is missing")
                          : absl::StrCat(" is ", tensor->shape.ToString(), ", but the model has ",
                                         piece.whole.ToString())));
  }

  absl::StatusOr<const void*> Load(const ShardPiece& piece, const NamedArray& stored) {
    data_.resize(piece.slice.elements() * SizeOf(stored.dtype));
    FATHOM_RETURN_IF_ERROR(SourceOf(piece.kind).ReadSlice(stored, piece.slice, data_.data()));
    if (piece.dtype == stored.dtype) return data_.data();
    converted_ = ConvertArray({.name = stored.name,
                               .dtype = stored.dtype,
                               .shape = {piece.slice.elements()},
                               .data = data_.data()},
                              piece.dtype);
    return converted_.data();
  }

  absl::Status CheckAllTaken(const TensorSource& source) const {
    for (const NamedArray& tensor : source.tensors()) {
      if (taken_.count(tensor.name) > 0) continue;
      return absl::DataLossError(absl::StrCat(checkpoint_.directory,
                                              " is not a checkpoint of its job: it has a tensor ",
                                              tensor.name, ", which the model has not"));
    }
    return absl::OkStatus();
  }

  FileSystem& files_;
  const Checkpoint& checkpoint_;
  const ReshardOptions& options_;
  const std::function<void(const std::string&)>& log_;
  std::set<std::string> taken_;  // names, which weights and optimizer do not have in common
  std::vector<char> data_, converted_;
};

}  // namespace

absl::StatusOr<std::string> ReshardCheckpoint(FileSystem& files, const std::string& from,
                                              const std::string& output,
                                              const ReshardOptions& options,
                                              const std::function<void(const std::string&)>& log) {
  FATHOM_RETURN_IF_ERROR(CheckNewDirectory(files, output));
  FATHOM_ASSIGN_OR_RETURN(const std::string directory, FindCheckpoint(files, from));
  FATHOM_ASSIGN_OR_RETURN(const Checkpoint checkpoint, OpenCheckpoint(files, directory));
  if (!options.weights_only && checkpoint.optimizer->tensors().empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(directory, " holds weights alone: add --weights-only"));
  }
  FATHOM_ASSIGN_OR_RETURN(const Job job, JobInLayout(checkpoint, options.layout));
  Manifest manifest = *checkpoint.manifest;
  manifest.job_text = job.text;
  manifest.mesh = MeshOf(job.parallel);
  manifest.files.clear();
  manifest.tensors.clear();
  FATHOM_RETURN_IF_ERROR(
      WriteNewDirectory(files, output, [&](const std::string& path) -> absl::Status {
        FATHOM_ASSIGN_OR_RETURN(const std::string unfinished,
                                BeginCheckpoint(files, path, manifest.step));
        FATHOM_RETURN_IF_ERROR(
            Resharding(files, checkpoint, options, log).Write(job, unfinished, &manifest));
        return PublishCheckpoint(files, path, manifest);
      }));
  return MeshOf(job.parallel).ToString();
}

}  // namespace fathom
