#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "core/arena.h"
#include "core/job.h"
#include "core/lane.h"
#include "parallel/expert/expert_group.h"
#include "parallel/rank_groups.h"
#include "parallel/tensor/tensor_group.h"
#include "runtime/model/stage.h"

namespace fathom {

// What a model is made for.
struct LanguageModelOptions {
  DType dtype = DType::kFloat32;
  int64_t length = 0;           // L of its sequences
  bool with_gradients = false;  // it will be trained
  bool sequence_parallel = false;
  bool experts_over_tensor = false;    // see ExpertSizes; that of the groups
  int chunks = 1;                      // parts of the pipeline that this rank has
  ParameterLayoutOptions layout = {};  // the ranks are filled in
};

// What one rank holds of a model on a device: its parts of the pipeline, its part of every matrix,
// its stream and the memory for micro-batches.
class LanguageModel {
 public:
  // The share of the rank that `groups`, which outlives the model, belongs to. The parameters'
  // contents are undefined. InvalidArgument for what cannot be cut.
  static absl::StatusOr<std::unique_ptr<LanguageModel>> Create(const ModelConfig& config,
                                                               const LanguageModelOptions& options,
                                                               RankGroups& groups, Device& device);

  const ModelConfig& config() const { return config_; }
  int64_t length() const { return options_.length; }
  DType dtype() const { return options_.dtype; }
  Device& device() { return device_; }
  Stream& stream() { return *stream_; }
  // The i-th of the arenas, one for each micro-batch in flight; made when first asked for.
  Arena& arena(size_t i = 0);
  // The most that was in use of each arena, added up.
  int64_t peak_arena_bytes() const;
  ParameterTable& parameters() { return parameters_; }
  // Of what layers did on their own; see TensorGroup::status.
  absl::Status status() const;
  Lanes& lanes() { return lanes_; }
  // This rank's consecutive layers, one stage for each chunk.
  const std::vector<std::unique_ptr<Stage>>& stages() const { return stages_; }
  // The whole model: on one rank only.
  Stage& stage();

 private:
  LanguageModel(const ModelConfig& config, const LanguageModelOptions& options, RankGroups& groups,
                Device& device);

  ModelConfig config_;
  LanguageModelOptions options_;
  Device& device_;
  std::unique_ptr<Stream> stream_;
  std::deque<Arena> arenas_;
  Lanes lanes_;
  TensorGroup tensor_;
  ExpertGroup experts_;
  ParameterTable parameters_;
  std::vector<std::unique_ptr<Stage>> stages_;
};

// The layers of every part of a pipeline, cut by their FLOPs on sequences of `length` tokens; the
// head's join the last part's.
absl::StatusOr<std::vector<LayerRange>> CutLayers(const ModelConfig& config, int64_t length,
                                                  int parts);

}  // namespace fathom
