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
  // and tensor, unless it holds int64 or int32, for exactly the sparse layers of the job,
  // model.layers.I.depth_selection [global_batch, k]: ascending positions within the sequence, and
  // for exactly its layers with experts, model.layers.I.expert_selection [global_batch, M, routed]:
  // ascending experts of each of the M tokens that the layer sees of a sequence.
  static absl::StatusOr<std::unique_ptr<SelectionReplay>> Read(FileSystem& files,
                                                               const std::string& path,
                                                               const Job& job);

  // The rows of the step's micro-batch `micro_batch`, from 0, for Pass::replay, in `arena`.
  ReplayedSelection Upload(int64_t micro_batch, Stream& stream, Arena& arena) const;
  // Likewise, the experts for Pass::expert_replay; empty for a model without experts.
  ReplayedSelection UploadExperts(int64_t micro_batch, Stream& stream, Arena& arena) const;

  struct Flips {
    int64_t tokens = 0;  // replayed, and not among the k largest logits of the model
    double margin = 0;   // the most that one of them is below the lowest of the k
    int64_t replayed = 0;
  };
  // Adds to `flips` those of a replayed training pass whose layers have run. Waits for the stream.
  absl::Status CountFlips(const Pass& pass, int64_t micro_batch, Flips* flips) const;
  // Likewise, of the choices of experts for the tokens that this rank saw: those that are not among
  // the largest scores with their bias.
  absl::Status CountExpertFlips(const Pass& pass, Flips* flips) const;

 private:
  struct Layer {
    int64_t layer;
    int64_t k;
    std::vector<int32_t> rows;  // [global_batch, k], rows of their micro-batch
  };

  struct ExpertLayer {
    int64_t layer;
    int64_t rows;                  // of a sequence
    std::vector<int32_t> experts;  // [global_batch, rows, routed]
  };

  absl::Status ReadLayer(const class SafetensorsFile& file, int64_t layer, int64_t k);
  absl::Status ReadExperts(const class SafetensorsFile& file, int64_t layer, int64_t rows);

  int64_t layers_ = 0;  // of the model
  int64_t micro_batch_ = 0;
  int64_t global_batch_ = 0;
  int64_t length_ = 0;
  int64_t experts_ = 0;
  int64_t routed_ = 0;
  std::vector<Layer> sparse_;
  std::vector<ExpertLayer> with_experts_;
};

}  // namespace fathom
