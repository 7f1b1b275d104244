#include "kernels/cross_entropy.h"

#include <algorithm>
#include <limits>

#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/vector_math.h"

namespace fathom {
namespace {

using cpu::RowsOf;

template <class S>
S Maximum(const S* logits, int64_t n) {
  return cpu::LaneMax<S>(n, -std::numeric_limits<S>::infinity(),
                         [&](int64_t j) { return logits[j]; });
}

template <class S>
S SumOfExponentials(const S* logits, int64_t n, S maximum) {
  return cpu::LaneSum<S>(n, [&](int64_t j) { return cpu::Exp(logits[j] - maximum); });
}

// `exponent` is the label's logit minus the maximum, which is exact where it matters.
template <class S>
S LossOf(S sum, S exponent) {
  return std::log(sum) - exponent;
}

// scale * (softmax - onehot); `label` is negative where it is not among these n logits. `gradient`
// may be `logits`.
template <class T, class S = cpu::Stat<T>>
void Gradient(const S* logits, int64_t n, int64_t label, S maximum, S sum, S scale, T* gradient) {
  const S target = label < 0 ? S(0) : logits[label];
  const S factor = scale / sum;
#pragma GCC ivdep  // gradient is logits itself or apart from it
  for (int64_t j = 0; j < n; ++j) {
    gradient[j] = static_cast<T>(factor * cpu::Exp(logits[j] - maximum));
  }
  if (label >= 0) {
    gradient[label] = static_cast<T>(factor * cpu::Exp(target - maximum) - scale);
  }
}

template <class T>
void Run(const CrossEntropy& op, CpuStream& stream) {
  using S = cpu::Stat<T>;
  const RowsOf<S> logits(op.logits);
  const RowsOf<T> gradients(op.d_logits);
  const int32_t* labels = op.labels.data<int32_t>();
  S* losses = op.losses.data<S>();
  const int64_t vocabulary = op.logits.dim(1);
  const S scale = static_cast<S>(op.scale);
  cpu::ParallelFor(stream, op.logits.dim(0), 6 * vocabulary, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      FATHOM_CHECK(labels[i] < vocabulary)
          << "label " << labels[i] << " of a vocabulary of " << vocabulary;
      T* gradient = gradients.absent() ? nullptr : gradients[i];
      if (labels[i] < 0) {
        losses[i] = 0;
        if (gradient != nullptr) std::fill_n(gradient, vocabulary, static_cast<T>(0));
        continue;
      }
      const S* row = logits[i];
      const S maximum = Maximum(row, vocabulary);
      const S sum = SumOfExponentials(row, vocabulary, maximum);
      losses[i] = LossOf<S>(sum, row[labels[i]] - maximum);
      if (gradient != nullptr) {
        Gradient<T>(row, vocabulary, labels[i], maximum, sum, scale, gradient);
      }
    }
  });
}

template <class S>
void Run(const ShardMaximum& op, CpuStream& stream) {
  const RowsOf<S> logits(op.logits);
  S* maximum = op.maximum.data<S>();
  const int64_t tokens = op.logits.dim(1);
  cpu::ParallelFor(stream, op.logits.dim(0), tokens, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) maximum[i] = Maximum(logits[i], tokens);
  });
}

template <class S>
void Run(const ShardSums& op, CpuStream& stream) {
  const RowsOf<S> logits(op.logits), sums(op.sums);
  const int32_t* labels = op.labels.data<int32_t>();
  const S* maximum = op.maximum.data<S>();
  const int64_t tokens = op.logits.dim(1);
  cpu::ParallelFor(stream, op.logits.dim(0), 2 * tokens, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const S* row = logits[i];
      const int64_t label = cpu::PlaceInWindow(labels[i], op.first_token, tokens);
      sums[0][i] = SumOfExponentials(row, tokens, maximum[i]);
      sums[1][i] = label < 0 ? S(0) : row[label] - maximum[i];
    }
  });
}

template <class T>
void Run(const ShardCrossEntropy& op, CpuStream& stream) {
  using S = cpu::Stat<T>;
  const RowsOf<S> logits(op.logits), sums(op.sums);
  const RowsOf<T> gradients(op.d_logits);
  const int32_t* labels = op.labels.data<int32_t>();
  const S* maximum = cpu::DataOf<S>(op.maximum);
  S* losses = op.losses.data<S>();
  const int64_t tokens = gradients.absent() ? 0 : op.d_logits.dim(1);
  const S scale = static_cast<S>(op.scale);
  cpu::ParallelFor(stream, op.losses.dim(0), 3 * tokens + 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const bool counted = labels[i] >= 0;
      losses[i] = counted ? LossOf(sums[0][i], sums[1][i]) : S(0);
      if (gradients.absent()) continue;
      if (counted) {
        const int64_t label = cpu::PlaceInWindow(labels[i], op.first_token, tokens);
        Gradient<T>(logits[i], tokens, label, maximum[i], sums[0][i], scale, gradients[i]);
      } else {
        std::fill_n(gradients[i], tokens, static_cast<T>(0));
      }
    }
  });
}

}  // namespace

void RunOnCpu(const CrossEntropy& operation, CpuStream& stream) {
  const Tensor& typed = operation.d_logits.absent() ? operation.logits : operation.d_logits;
  cpu::Dispatch(typed.dtype(), [&](auto type) { Run<decltype(type)>(operation, stream); });
}

void RunOnCpu(const ShardMaximum& operation, CpuStream& stream) {
  cpu::DispatchStatistics(operation.maximum.dtype(),
                          [&](auto type) { Run<decltype(type)>(operation, stream); });
}

void RunOnCpu(const ShardSums& operation, CpuStream& stream) {
  cpu::DispatchStatistics(operation.sums.dtype(),
                          [&](auto type) { Run<decltype(type)>(operation, stream); });
}

void RunOnCpu(const ShardCrossEntropy& operation, CpuStream& stream) {
  const Tensor& typed = operation.d_logits.absent() ? operation.losses : operation.d_logits;
  cpu::Dispatch(typed.dtype(), [&](auto type) { Run<decltype(type)>(operation, stream); });
}

}  // namespace fathom
