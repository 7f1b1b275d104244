#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/arena.h"
#include "core/job.h"
#include "runtime/model/parameters.h"
#include "runtime/optimizer/muon.h"

namespace fathom {

// Clips gradients by their global norm and updates all parameters: Muon for the hidden matrices
// (unless the job gives them to AdamW too), AdamW for the rest. Masters are updated and weights
// rounded from them. Owns momenta and moments, in StatisticsDType of the weights.
class Optimizer {
 public:
  // `table` has its memory, with gradients, and outlives the optimizer. Momenta start at 0.
  static absl::StatusOr<std::unique_ptr<Optimizer>> Create(const OptimizerConfig& config,
                                                           const ParameterTable& table,
                                                           Device& device, Stream& stream);

  // One update from the table's gradients. When `loss` [k] float64 or the gradient norm is not
  // finite, everything stays as it was. Scratch comes from `arena`.
  void Step(Stream& stream, Arena& arena, double learning_rate, const Tensor& loss);

  // [kStepScalars] float64 in device memory: what the last step did (see kernels/optimizer.h).
  const Tensor& step() const { return step_; }

  // All state by name, for checkpoints: NAME.momentum, or NAME.first and NAME.second, of the
  // parameters' shapes; `step` besides.
  struct StateTensor {
    std::string name;
    Tensor tensor;
  };
  const std::vector<StateTensor>& state() const { return state_; }
  int64_t bytes() const { return state_buffer_.bytes() + scalars_.bytes(); }

 private:
  Optimizer(const OptimizerConfig& config, const ParameterTable& table);

  struct Moments {
    const Parameter* parameter;
    Tensor first, second;  // [elements]
  };

  bool UsesMuon(const Parameter& parameter) const;

  OptimizerConfig config_;
  const ParameterTable& table_;
  Buffer state_buffer_;
  Buffer scalars_;
  std::vector<StateTensor> state_;
  std::vector<Moments> adam_;
  std::unique_ptr<Muon> muon_;
  Tensor step_;               // [kStepScalars] float64
  Tensor squared_norm_;       // [1] float64
  double learning_rate_ = 0;  // the source of an asynchronous copy
};

}  // namespace fathom
