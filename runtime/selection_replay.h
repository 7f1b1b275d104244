#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/file.h"
#include "core/job.h"
#include "runtime/model/pass.h"

namespace fathom {

// A recorded selection of the global batch that takes the place of the model's own in every
// training step, so that two programs can be compared although a near-tie would fall differently.
class SelectionReplay {
 public:
  // Reads selection.safetensors of a dump, or of a dump's directory. InvalidArgument, naming file
  // and tensor, unless it holds, for exactly the sparse layers of the job,
  // model.layers.I.depth_selection [global_batch, k] int64 or int32: ascending positions within
  // the sequence.
  static absl::StatusOr<std::unique_ptr<SelectionReplay>> Read(FileSystem& files,
                                                               const std::string& path,
                                                               const Job& job);

  // The rows of the step's micro-batch `micro_batch`, from 0, for Pass::replay, in `arena`.
  ReplayedSelection Upload(int64_t micro_batch, Stream& stream, Arena& arena) const;

  struct Flips {
    int64_t tokens = 0;  // replayed, and not among the k largest logits of the model
    double margin = 0;   // the most that one of them is below the lowest of the k
    int64_t replayed = 0;
  };
  // Adds to `flips` those of a replayed training pass whose layers have run. Waits for the stream.
  absl::Status CountFlips(const Pass& pass, int64_t micro_batch, Flips* flips) const;

 private:
  struct Layer {
    int64_t layer;
    int64_t k;
    std::vector<int32_t> rows;  // [global_batch, k], rows of their micro-batch
  };

  absl::Status ReadLayer(const class SafetensorsFile& file, int64_t layer, int64_t k);

  int64_t layers_ = 0;  // of the model
  int64_t micro_batch_ = 0;
  int64_t global_batch_ = 0;
  int64_t length_ = 0;
  std::vector<Layer> sparse_;
};

}  // namespace fathom
