#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/file.h"
#include "core/job.h"
#include "parallel/rank_groups.h"
#include "runtime/data/batch_share.h"
#include "runtime/gather.h"
#include "runtime/model/micro_batch.h"
#include "runtime/model/parameters.h"
#include "runtime/model/pass.h"
#include "runtime/optimizer/optimizer.h"

namespace fathom {

// Writes one training step whole, so that another program, layout or device can be compared with
// it. docs/formats.md describes the files. Calls in this order, by all ranks: Begin; AddTokens and
// AddSelections for each of the rank's micro-batches, AddGradients, Finish. Rank 0 writes whole
// tensors to DIRECTORY.tmp, which Finish renames.
class StepDump {
 public:
  // `directory` may exist when CheckDirectory says so; an older dump in it is replaced by Finish.
  // `share`: which sequences of the global batch this rank has.
  StepDump(FileSystem& files, std::string directory, const BatchShare& share, int64_t length,
           RankGroups& groups, Stream& stream);

  // AlreadyExists when `directory` is there and holds anything but a dump.
  static absl::Status CheckDirectory(FileSystem& files, const std::string& directory);

  // Weights and optimizer state before the step.
  absl::Status Begin(const ParameterTable& parameters, const Optimizer& optimizer);
  // Of this rank's micro-batch number `micro_batch`.
  void AddTokens(int64_t micro_batch, const HostBatch& host);
  // Of a training pass over that micro-batch, whose layers have run. Enqueues copies: `pass` must
  // stay as it is until the stream has done them.
  void AddSelections(int64_t micro_batch, const Pass& pass);
  // The gradients of all micro-batches and ranks together, not clipped.
  absl::Status AddGradients(const ParameterTable& parameters);
  // Weights after the step; `record`: the step's metrics, one JSON object.
  absl::Status Finish(const ParameterTable& parameters, const std::string& record);

 private:
  // Rows of this rank's sequences, in their order: [sequences, width] of a tensor that has them for
  // the global batch.
  struct SequenceRows {
    int64_t width = 0;
    std::vector<int64_t> values;
  };

  // Which experts some rows of the global batch went to.
  struct ExpertRows {
    std::string name;
    Shape whole;        // [global batch, tokens of a sequence that the layer sees, routed]
    int64_t first = 0;  // element
    std::vector<int32_t> copied;
    std::vector<int64_t> values;
  };

  // Writes what the ranks' pieces make up.
  absl::Status Write(const std::string& name, const std::vector<TensorPiece>& pieces);
  // Of what all tensor ranks have, the first one gives its pieces.
  std::vector<TensorPiece> Pieces(std::map<std::string, SequenceRows>& tensors);
  void AddExperts(int64_t micro_batch, const Pass& pass);
  std::vector<TensorPiece> ExpertPieces();
  // Whether a sequence on any rank holds several documents.
  absl::StatusOr<bool> AnyPacked();
  SequenceRows& RowsOf(std::map<std::string, SequenceRows>& tensors, const std::string& name,
                       int64_t width);

  FileSystem& files_;
  std::string directory_;
  std::string temporary_;
  BatchShare share_;
  int64_t length_;
  RankGroups& groups_;
  Stream& stream_;
  std::map<std::string, SequenceRows> tokens_;  // input_ids, labels, document_ids
  std::map<std::string, SequenceRows> selections_;
  std::deque<std::vector<int32_t>> copied_;  // selections on their way to the host
  struct Copied {
    std::string name;
    int64_t micro_batch;
    int64_t tokens_per_sequence;  // k
  };
  std::vector<Copied> copies_;  // what copied_ holds
  std::deque<ExpertRows> experts_;
  bool packed_ = false;  // more documents than sequences
};

}  // namespace fathom
