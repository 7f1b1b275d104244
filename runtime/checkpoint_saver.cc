#include "runtime/checkpoint_saver.h"

#include <algorithm>
#include <new>
#include <utility>

#include "core/status.h"
#include "parallel/agreement.h"
#include "runtime/checkpoint/checkpoint_directory.h"
#include "runtime/shard_pieces.h"

namespace fathom {
namespace {

std::vector<const TensorPiece*> TensorsOf(const SaveRequest& request) {
  std::vector<const TensorPiece*> tensors;
  for (const TensorPiece& piece : request.weights) tensors.push_back(&piece);
  for (const TensorPiece& piece : request.optimizer) tensors.push_back(&piece);
  return tensors;
}

}  // namespace

CheckpointSaver::CheckpointSaver(FileSystem& files, const Job& job, RankGroups& groups,
                                 Stream& stream, std::function<void(const std::string&)> log)
    : files_(files),
      output_(job.train.output),
      job_text_(job.text),
      config_(job.checkpoint),
      groups_(groups),
      stream_(stream),
      log_(std::move(log)) {}

CheckpointSaver::~CheckpointSaver() {
  if (thread_.joinable()) thread_.join();
}

absl::Status CheckpointSaver::Save(const SaveRequest& request, bool background) {
  if (in_flight()) {
    log_(absl::StrCat("step ", request.step, ": the save of step ", manifest_.step,
                      " is still in flight, and training waits for it"));
    FATHOM_RETURN_IF_ERROR(Finish());
  }
  manifest_ = {.step = request.step,
               .consumed_sequences = request.consumed_sequences,
               .job_text = job_text_,
               .mesh = groups_.sizes(),
               .files = {},
               .tensors = {},
               .integers = request.integers,
               .numbers = request.numbers};
  background_ = background;
  absl::StatusOr<std::string> directory = "";
  if (groups_.first()) directory = BeginCheckpoint(files_, output_, request.step);
  FATHOM_ASSIGN_OR_RETURN(const Agreement begun,
                          AgreeOverRanks(groups_.world(), stream_, directory));
  if (!begun.status.ok()) {
    Fail(begun.status);
    return absl::OkStatus();
  }
  stage_ = Stage::kWriting;
  Start(WriteWork(request, begun.texts[0]));
  return background ? absl::OkStatus() : Finish();
}

absl::Status CheckpointSaver::Poll() {
  if (!in_flight()) return absl::OkStatus();
  int32_t busy = !done_;  // on any rank, once it is reduced
  FATHOM_RETURN_IF_ERROR(groups_.world()
                             .AllReduce(Tensor(&busy, DType::kInt32, {1}), ReduceOp::kMax, stream_)
                             .Wait(stream_));
  return busy != 0 ? absl::OkStatus() : Advance();
}

absl::Status CheckpointSaver::Finish() {
  while (in_flight()) FATHOM_RETURN_IF_ERROR(Advance());
  return absl::OkStatus();
}

absl::Status CheckpointSaver::Advance() {
  FATHOM_ASSIGN_OR_RETURN(Agreement agreed, AgreeOverRanks(groups_.world(), stream_, Join()));
  if (!agreed.status.ok()) {
    Fail(agreed.status);
    return absl::OkStatus();
  }
  if (stage_ == Stage::kWriting) {
    stage_ = Stage::kPublishing;
    Start(PublishWork(std::move(agreed.texts)));
    return absl::OkStatus();
  }
  stage_ = Stage::kIdle;
  saved_step_ = manifest_.step;
  if (const std::string& warning = agreed.texts[0]; !warning.empty()) log_(warning);
  return absl::OkStatus();
}

void CheckpointSaver::Fail(const absl::Status& status) {
  stage_ = Stage::kIdle;
  failure_ = Failure{manifest_.step, status};
  if (groups_.first()) DiscardCheckpoint(files_, output_, manifest_.step);
}

std::optional<CheckpointSaver::Failure> CheckpointSaver::TakeFailure() {
  return std::exchange(failure_, std::nullopt);
}

void CheckpointSaver::Start(Work work) {
  done_ = false;
  if (!background_) {
    result_ = work();
    done_ = true;
    return;
  }
  thread_ = std::thread([this, work = std::move(work)] {
    result_ = work();
    done_ = true;
  });
}

absl::StatusOr<std::string> CheckpointSaver::Join() {
  if (thread_.joinable()) thread_.join();
  return std::exchange(result_, std::string());
}

std::vector<ShardPiece> CheckpointSaver::DescribePieces(const SaveRequest& request) const {
  std::vector<ShardPiece> pieces;
  AppendShardPieces(TensorKind::kWeight, request.weights, &pieces);
  AppendShardPieces(TensorKind::kOptimizer, request.optimizer, &pieces);
  if (stream_.device().kind() != DeviceKind::kCpu) return pieces;
  const std::vector<const TensorPiece*> tensors = TensorsOf(request);
  for (size_t i = 0; i < pieces.size(); ++i) pieces[i].data = tensors[i]->data.raw();
  return pieces;
}

absl::Status CheckpointSaver::CopyPieces(const std::vector<const TensorPiece*>& tensors,
                                         std::vector<ShardPiece>* pieces) {
  int64_t bytes = 0;
  std::vector<int64_t> offsets;
  for (const ShardPiece& piece : *pieces) {
    offsets.push_back(bytes);
    bytes += SnapshotBytes(piece);
  }
  if (bytes > copy_bytes_) {
    copy_.reset();
    // Not initialised, since that would touch every page twice.
    copy_.reset(new (std::nothrow) char[bytes]);
    copy_bytes_ = copy_ == nullptr ? 0 : bytes;
    if (copy_ == nullptr) {
      return absl::ResourceExhaustedError(
          absl::StrCat("there is no memory for a copy of ", bytes, " bytes to save from"));
    }
  }
  for (size_t i = 0; i < pieces->size(); ++i) {
    stream_.CopyToHost(tensors[i]->data, copy_.get() + offsets[i]);
    (*pieces)[i].data = copy_.get() + offsets[i];
  }
  return stream_.Synchronize();
}

CheckpointSaver::Work CheckpointSaver::WriteWork(const SaveRequest& request,
                                                 const std::string& directory) {
  std::vector<ShardPiece> pieces = DescribePieces(request);
  const std::vector<const TensorPiece*> tensors = TensorsOf(request);
  absl::Status copied = stream_.Synchronize();
  if (copied.ok() && background_) copied = CopyPieces(tensors, &pieces);
  if (!copied.ok()) return [copied]() -> absl::StatusOr<std::string> { return copied; };
  // Where the host does not see the pieces, they come one at a time.
  PieceLoader load;
  if (!background_ && stream_.device().kind() != DeviceKind::kCpu) {
    const auto buffer = std::make_shared<std::vector<char>>();
    load = [this, tensors, buffer](size_t i) -> absl::StatusOr<const void*> {
      buffer->resize(tensors[i]->data.bytes());
      stream_.CopyToHost(tensors[i]->data, buffer->data());
      FATHOM_RETURN_IF_ERROR(stream_.Synchronize());
      return buffer->data();
    };
  }
  return [this, directory, pieces = std::move(pieces), load]() -> absl::StatusOr<std::string> {
    FATHOM_ASSIGN_OR_RETURN(const Manifest part,
                            WriteShards(files_, directory, groups_.rank(), pieces, load));
    return PackPart(part);
  };
}

CheckpointSaver::Work CheckpointSaver::PublishWork(std::vector<std::string> parts) {
  if (!groups_.first()) return [] { return std::string(); };
  return [this, parts = std::move(parts)]() -> absl::StatusOr<std::string> {
    Manifest manifest = manifest_;
    for (const std::string& part : parts) FATHOM_RETURN_IF_ERROR(AddPart(part, &manifest));
    FATHOM_RETURN_IF_ERROR(PublishCheckpoint(files_, output_, manifest));
    const absl::Status removed = RemoveOldCheckpoints(files_, output_, config_);
    if (removed.ok()) return "";
    return absl::StrCat("old checkpoints could not be removed: ", removed.message());
  };
}

}  // namespace fathom
