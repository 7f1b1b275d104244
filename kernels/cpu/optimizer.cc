#include "kernels/optimizer.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/sum.h"

namespace fathom {

void RunOnCpu(const PrepareStep& operation, CpuStream&) {
  double* step = operation.step.data<double>();
  const double norm = std::sqrt(*operation.squared_norm.data<double>());
  bool finite = std::isfinite(norm);
  const double* loss = operation.loss.data<double>();
  for (int64_t i = 0; i < operation.loss.elements(); ++i) finite = finite && std::isfinite(loss[i]);
  step[kGradientNorm] = norm;
  step[kApply] = finite ? 1 : 0;
  const bool clips = finite && operation.clip > 0;
  step[kClipScale] = clips ? std::min(1.0, operation.clip / (norm + 1e-6)) : 1;
  if (finite) step[kAdamStep] += 1;
}

void RunOnCpu(const AdamW& operation, CpuStream& stream) {
  const AdamW& op = operation;
  const double* step = op.step.data<double>();
  if (step[kApply] == 0) return;
  cpu::DispatchStatistics(op.weight.dtype(), [&](auto type) {
    using S = decltype(type);
    const S* gradient = op.gradient.data<S>();
    S* first = op.first.data<S>();
    S* second = op.second.data<S>();
    S* weight = op.weight.data<S>();
    const S clip = static_cast<S>(step[kClipScale]);
    const S keep = static_cast<S>(1 - step[kLearningRate] * op.decay);
    const S beta1 = static_cast<S>(op.beta1);
    const S beta2 = static_cast<S>(op.beta2);
    const S rest1 = static_cast<S>(1 - op.beta1);
    const S rest2 = static_cast<S>(1 - op.beta2);
    const S epsilon = static_cast<S>(op.epsilon);
    const S correction2 = static_cast<S>(1 / (1 - std::pow(op.beta2, step[kAdamStep])));
    const S rate = static_cast<S>(step[kLearningRate] / (1 - std::pow(op.beta1, step[kAdamStep])));
    cpu::ParallelFor(stream, op.weight.elements(), 4, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) {
        const S g = clip * gradient[i];
        first[i] = beta1 * first[i] + rest1 * g;
        second[i] = beta2 * second[i] + rest2 * g * g;
        weight[i] =
            keep * weight[i] - rate * first[i] / (std::sqrt(second[i] * correction2) + epsilon);
      }
    });
  });
}

void RunOnCpu(const MuonMomentum& operation, CpuStream& stream) {
  const MuonMomentum& op = operation;
  const double* step = op.step.data<double>();
  cpu::DispatchStatistics(op.momentum.dtype(), [&](auto type) {
    using S = decltype(type);
    const S* gradient = op.gradient.data<S>();
    S* momentum = op.momentum.data<S>();
    S* direction = op.direction.data<S>();
    const S clip = static_cast<S>(step[kClipScale]);
    const S mu = static_cast<S>(op.mu);
    const bool apply = step[kApply] != 0;
    cpu::ParallelFor(stream, op.momentum.elements(), 1, [&](int64_t begin, int64_t end, int) {
      if (!apply) {
        std::fill(direction + begin, direction + end, S(0));
        return;
      }
      for (int64_t i = begin; i < end; ++i) {
        const S g = clip * gradient[i];
        momentum[i] = mu * momentum[i] + g;
        direction[i] = g + mu * momentum[i];
      }
    });
  });
}

void RunOnCpu(const NormalizeMatrices& operation, CpuStream& stream) {
  const NormalizeMatrices& op = operation;
  cpu::DispatchStatistics(op.x.dtype(), [&](auto type) {
    using S = decltype(type);
    const int64_t size = op.x.dim(1) * op.x.dim(2);
    const cpu::RowsOf<S> matrices(op.x);
    for (int64_t b = 0; b < op.x.dim(0); ++b) {
      S* x = matrices[b];
      const double squares = cpu::BlockedSum(stream, size, [&](int64_t j) {
        const double value = x[j];
        return value * value;
      });
      const S factor = static_cast<S>(1 / (std::sqrt(squares) + 1e-7));
      cpu::ParallelFor(stream, size, 1, [&](int64_t begin, int64_t end, int) {
        for (int64_t j = begin; j < end; ++j) x[j] *= factor;
      });
    }
  });
}

void RunOnCpu(const MuonApply& operation, CpuStream& stream) {
  const MuonApply& op = operation;
  const double* step = op.step.data<double>();
  if (step[kApply] == 0) return;
  cpu::DispatchStatistics(op.weight.dtype(), [&](auto type) {
    using S = decltype(type);
    const S* direction = op.direction.data<S>();
    S* weight = op.weight.data<S>();
    const S keep = static_cast<S>(1 - step[kLearningRate] * op.decay);
    const S rate = static_cast<S>(step[kLearningRate] * op.factor);
    cpu::ParallelFor(stream, op.weight.elements(), 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) weight[i] = keep * weight[i] - rate * direction[i];
    });
  });
}

void RunOnCpu(const UpdateExpertBias& operation, CpuStream&) {
  const UpdateExpertBias& op = operation;
  if (op.step.data<double>()[kApply] == 0) return;
  const int64_t experts = op.bias.elements();
  cpu::DispatchStatistics(op.bias.dtype(), [&](auto type) {
    using S = decltype(type);
    const S* counts = op.counts.data<S>();
    S* bias = op.bias.data<S>();
    const S rate = static_cast<S>(op.rate);
    double sum = 0;
    for (int64_t e = 0; e < experts; ++e) sum += counts[e];
    for (int64_t e = 0; e < experts; ++e) {
      // Whole numbers, so that a count that is the mean is seen as equal.
      const double below = sum - static_cast<double>(experts) * counts[e];
      if (below > 0) bias[e] += rate;
      if (below < 0) bias[e] -= rate;
    }
  });
}

}  // namespace fathom
