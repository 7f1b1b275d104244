#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "core/buffer.h"
#include "core/job.h"
#include "parallel/expert/expert_group.h"
#include "parallel/pipeline/partition.h"
#include "parallel/tensor/tensor_group.h"
#include "runtime/model/block.h"
#include "runtime/model/head.h"
#include "runtime/model/micro_batch.h"
#include "runtime/model/parameters.h"

namespace fathom {

// Consecutive layers of a model that one rank runs: all of them, or a part of the pipeline. The
// first part has the embedding, the last one the head.
class Stage {
 public:
  // Adds the parameters to `table`, in the order of layers. Groups and `table` outlive the stage.
  Stage(const ModelConfig& config, const LayerRange& layers, TensorGroup& tensor,
        ExpertGroup& experts, ParameterTable& table);

  // Rotary tables for sequences of `length` tokens, in StatisticsDType(dtype). Once, before any
  // pass.
  absl::Status Prepare(Device& device, Stream& stream, DType dtype, int64_t length);

  // A pass over a micro-batch, its tensors in `arena`. The caller sets routing, training,
  // the weights of auxiliary losses, replays and expert_rows.
  Pass NewPass(Stream& stream, Arena& arena, const MicroBatch& batch) const;

  // Embedding and layers. Where there is no embedding, pass.residual and, if NeedsCounts, counts
  // hold what the part before left there.
  void Forward(Pass& pass, const MicroBatch& batch) const;
  // The head: losses [n] stat; see Head::Forward for loss_weight.
  void Loss(Pass& pass, const MicroBatch& batch, double loss_weight, const Tensor& losses);
  // All gradients of the parameters +=, after Forward and, with a head, Loss of a training pass.
  // Where there is no head, pass.d_residual holds what the part behind left there. Calls `done`,
  // unless it is empty, with growing certainty: all gradients from this place of the parameter
  // table on have got this pass's share.
  void Backward(Pass& pass, const MicroBatch& batch,
                const std::function<void(size_t first_parameter)>& done = {}) const;

  const LayerRange& layers() const { return layers_; }
  bool has_embedding() const { return embedding_ != nullptr; }
  bool has_head() const { return head_.has_value(); }
  // Whether the token-choice counts go on from the part before: the cut is inside an interval.
  bool NeedsCounts() const;

  const Head& head() const { return *head_; }
  const ModelConfig& config() const { return config_; }

 private:
  void Embed(Pass& pass, const MicroBatch& batch) const;
  void EmbedBackward(Pass& pass, const MicroBatch& batch) const;

  ModelConfig config_;
  LayerRange layers_;
  TensorGroup& tensor_;
  ElementRange tokens_;  // of the vocabulary, whose embeddings this rank holds
  const Parameter* embedding_ = nullptr;
  std::vector<std::unique_ptr<Block>> blocks_;
  std::vector<size_t> first_parameters_;  // of the blocks, places in the table
  size_t first_parameter_;                // of the stage
  size_t head_parameter_;
  std::optional<Head> head_;
  DType dtype_ = DType::kFloat32;
  Buffer tables_;
  Tensor cosine_, sine_;  // [L, h/2]
};

}  // namespace fathom
