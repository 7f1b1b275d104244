#pragma once

#include <string_view>

#include "kernels/launch.h"

namespace fathom {

// What changes from step to step lives in device memory, so that a step never waits for the host:
// `step` below is [kStepScalars] float64.
enum StepScalar {
  kLearningRate,  // of this step
  kClipScale,     // gradients are multiplied by it: min(1, clip / (norm + 1e-6)), or 1
  kApply,         // 1, or 0 when the loss or the gradient norm is not finite: then nothing changes
  kGradientNorm,  // before clipping
  kAdamStep,      // the number of this update, from 1: a skipped step does not count
  kStepScalars,
};

// From the squared norm to kGradientNorm, kClipScale and kApply, and kAdamStep += kApply.
struct PrepareStep {
  static constexpr std::string_view kName = "prepare_step";
  Tensor squared_norm;  // [1] float64
  Tensor loss;          // [k] float64: not finite in any element means kApply = 0
  double clip = 1;      // 0: no clipping
  Tensor step;          // [kStepScalars] float64
  Cost cost() const;
};
void RunOnCpu(const PrepareStep& operation, CpuStream& stream);

// AdamW (Loshchilov and Hutter, "Decoupled weight decay regularization", 2019, algorithm 2), with
// g = clip scale * gradient and t = step[kAdamStep]:
//   w *= 1 - lr * decay
//   first = beta1 * first + (1 - beta1) * g;  second = beta2 * second + (1 - beta2) * g^2
//   w -= lr * (first / (1 - beta1^t)) / (sqrt(second / (1 - beta2^t)) + epsilon)
struct AdamW {
  static constexpr std::string_view kName = "adamw";
  Tensor gradient;  // [N] stat
  Tensor step;      // [kStepScalars] float64
  double decay = 0;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  Tensor first;   // [N] stat, updated
  Tensor second;  // [N] stat, updated
  Tensor weight;  // [N] stat, updated
  Cost cost() const;
};
void RunOnCpu(const AdamW& operation, CpuStream& stream);

// Muon's first half: with g = clip scale * gradient, momentum = mu * momentum + g, and
// direction = g + mu * momentum. When kApply is 0 the momentum stays and the direction is 0.
struct MuonMomentum {
  static constexpr std::string_view kName = "muon_momentum";
  Tensor gradient;  // [N] stat
  Tensor step;      // [kStepScalars] float64
  double mu = 0.95;
  Tensor momentum;   // [N] stat, updated
  Tensor direction;  // [N] stat; may be `gradient` itself
  Cost cost() const;
};
void RunOnCpu(const MuonMomentum& operation, CpuStream& stream);

// x_b *= 1 / (|x_b|_F + 1e-7) for each matrix of a batch, the norm summed in double.
struct NormalizeMatrices {
  static constexpr std::string_view kName = "normalize_matrices";
  Tensor x;  // [batch, rows, columns] stat, updated
  Cost cost() const;
};
void RunOnCpu(const NormalizeMatrices& operation, CpuStream& stream);

// Muon's last step: w = w * (1 - lr * decay) - lr * factor * direction, unless kApply is 0.
struct MuonApply {
  static constexpr std::string_view kName = "muon_apply";
  Tensor direction;  // [N] stat, orthogonalised
  Tensor step;       // [kStepScalars] float64
  double decay = 0;
  double factor = 1;  // 0.2 * sqrt(max(rows, columns))
  Tensor weight;      // [N] stat, updated
  Cost cost() const;
};
void RunOnCpu(const MuonApply& operation, CpuStream& stream);

// The bias that selects the experts of a layer moves against their load (Wang et al.,
// "Auxiliary-loss-free load balancing strategy for mixture-of-experts", 2024):
// bias += rate * sign(mean of counts - count), sign(0) = 0, unless kApply is 0.
struct UpdateExpertBias {
  static constexpr std::string_view kName = "update_expert_bias";
  Tensor counts;  // [E] stat: rows that chose each expert, of the global batch
  double rate = 0;
  Tensor step;  // [kStepScalars] float64
  Tensor bias;  // [E] stat, updated
  Cost cost() const;
};
void RunOnCpu(const UpdateExpertBias& operation, CpuStream& stream);

}  // namespace fathom
