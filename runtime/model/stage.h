#pragma once

#include <memory>
#include <vector>

#include "core/buffer.h"
#include "core/job.h"
#include "runtime/model/block.h"
#include "runtime/model/head.h"
#include "runtime/model/micro_batch.h"
#include "runtime/model/parameters.h"

namespace fathom {

// The layers that one rank runs, with embedding and head where it has them: here the whole model.
class Stage {
 public:
  // Adds the parameters to `table`, in the order of layers.
  Stage(const ModelConfig& config, ParameterTable& table);

  // Rotary tables for sequences of `length` tokens, in StatisticsDType(dtype). Once, before any
  // pass.
  absl::Status Prepare(Device& device, Stream& stream, DType dtype, int64_t length);

  // A pass over a micro-batch, its tensors in `arena`. The caller sets routing, training,
  // auxiliary_weight and replay.
  Pass NewPass(Stream& stream, Arena& arena, const MicroBatch& batch) const;

  // Embedding and all layers.
  void Forward(Pass& pass, const MicroBatch& batch) const;
  // The head: losses [n] stat; see Head::Forward for loss_weight.
  void Loss(Pass& pass, const MicroBatch& batch, double loss_weight, const Tensor& losses);
  // All gradients of the parameters +=, after Forward and Loss of a training pass.
  void Backward(Pass& pass, const MicroBatch& batch) const;

  const Head& head() const { return head_; }
  const ModelConfig& config() const { return config_; }

 private:
  ModelConfig config_;
  const Parameter* embedding_;
  std::vector<std::unique_ptr<Block>> blocks_;
  Head head_;
  DType dtype_ = DType::kFloat32;
  Buffer tables_;
  Tensor cosine_, sine_;  // [L, h/2]
};

}  // namespace fathom
