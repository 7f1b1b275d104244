#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "core/file.h"
#include "core/job.h"
#include "parallel/rank_groups.h"
#include "runtime/checkpoint/shard_writer.h"
#include "runtime/gather.h"

namespace fathom {

// What a rank saves. The pieces' memory is read until Save returns.
struct SaveRequest {
  int64_t step = 0;  // steps done
  int64_t consumed_sequences = 0;
  std::vector<TensorPiece> weights;    // of this rank
  std::vector<TensorPiece> optimizer;  // likewise
  // Whatever else resuming needs; those of rank 0 count.
  std::map<std::string, int64_t> integers = {};
  std::map<std::string, double> numbers = {};
};

// Saves checkpoints of a run: every rank writes what it gives, and rank 0 publishes the whole once
// all have written. All ranks of the job make the same calls in the same order. In the background
// a thread of this rank writes from a copy; at most one save is in flight, and only the calls of
// this class, on the caller's thread, talk to other ranks. A save that fails changes nothing of
// what was saved before, and all ranks hear why: see TakeFailure. The status of the calls is that
// of the communicators.
class CheckpointSaver {
 public:
  // `files`, `groups` and `stream` outlive the object. `log`: for rank 0's user.
  CheckpointSaver(FileSystem& files, const Job& job, RankGroups& groups, Stream& stream,
                  std::function<void(const std::string&)> log);
  // Waits for this rank's thread; a save in flight is not published.
  ~CheckpointSaver();
  CheckpointSaver(const CheckpointSaver&) = delete;
  CheckpointSaver& operator=(const CheckpointSaver&) = delete;

  // In the background: returns when the pieces are copied, after waiting for a save that is in
  // flight. Else: when the checkpoint is there, or has failed.
  absl::Status Save(const SaveRequest& request, bool background);
  // Moves a save in flight on, if all ranks are ready for it. To be called after every step.
  absl::Status Poll();
  // Waits until no save is in flight.
  absl::Status Finish();

  bool in_flight() const { return stage_ != Stage::kIdle; }
  // The step of the newest checkpoint that is whole; -1: none of this object's.
  int64_t saved_step() const { return saved_step_; }
  // Of the copy that saves in the background write from, in host memory.
  int64_t snapshot_bytes() const { return copy_bytes_; }

  struct Failure {
    int64_t step;
    absl::Status status;  // as AgreeOverRanks gives it
  };
  // The last save that failed since the last call.
  std::optional<Failure> TakeFailure();

 private:
  enum class Stage { kIdle, kWriting, kPublishing };
  using Work = std::function<absl::StatusOr<std::string>()>;

  // Runs `work`, in the background or at once; its result is there once it has been joined.
  void Start(Work work);
  absl::StatusOr<std::string> Join();
  // Meets the other ranks when this one is ready, and goes to the next stage.
  absl::Status Advance();
  void Fail(const absl::Status& status);

  // The pieces as WriteShards takes them: their memory where the host sees it, unless they are
  // copied.
  std::vector<ShardPiece> DescribePieces(const SaveRequest& request) const;
  absl::Status CopyPieces(const std::vector<const TensorPiece*>& tensors,
                          std::vector<ShardPiece>* pieces);
  Work WriteWork(const SaveRequest& request, const std::string& directory);
  // Rank 0's: the manifest from all ranks' parts. The result is a warning, or empty.
  Work PublishWork(std::vector<std::string> parts);

  FileSystem& files_;
  const std::string output_;
  const std::string job_text_;
  const CheckpointConfig config_;
  RankGroups& groups_;
  Stream& stream_;
  std::function<void(const std::string&)> log_;

  Stage stage_ = Stage::kIdle;
  bool background_ = false;
  Manifest manifest_;  // of the save in flight, without files and tensors
  int64_t saved_step_ = -1;
  std::optional<Failure> failure_;

  std::unique_ptr<char[]> copy_;  // of the pieces; kept for the next save
  int64_t copy_bytes_ = 0;

  std::thread thread_;
  std::atomic<bool> done_{false};
  absl::StatusOr<std::string> result_ = "";
};

}  // namespace fathom
