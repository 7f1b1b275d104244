#include "kernels/cross_entropy.h"

#include <algorithm>
#include <limits>

#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/vector_math.h"

namespace fathom {
namespace {

// `gradient` is null when it is not wanted; it may be `logits`.
template <class T>
cpu::Stat<T> RowLoss(const cpu::Stat<T>* logits, int64_t vocabulary, int64_t label, T* gradient,
                     cpu::Stat<T> scale) {
  using S = cpu::Stat<T>;
  const auto at = [&](int64_t j) { return logits[j]; };
  const S largest = cpu::LaneMax<S>(vocabulary, std::numeric_limits<S>::lowest(), at);
  const S sum = cpu::LaneSum<S>(vocabulary, [&](int64_t j) { return cpu::Exp(at(j) - largest); });
  // log(sum) - (logit - largest): the differences are exact where it matters.
  const S loss = std::log(sum) - (at(label) - largest);
  if (gradient != nullptr) {
    const S target = at(label);
    const S factor = scale / sum;
#pragma GCC ivdep  // gradient is logits itself or apart from it
    for (int64_t j = 0; j < vocabulary; ++j) {
      gradient[j] = static_cast<T>(factor * cpu::Exp(at(j) - largest));
    }
    gradient[label] = static_cast<T>(factor * cpu::Exp(target - largest) - scale);
  }
  return loss;
}

template <class T>
void Run(const CrossEntropy& op, CpuStream& stream) {
  using S = cpu::Stat<T>;
  const cpu::RowsOf<S> logits(op.logits);
  const cpu::RowsOf<T> gradients(op.d_logits);
  const int32_t* labels = op.labels.data<int32_t>();
  S* losses = op.losses.data<S>();
  const int64_t vocabulary = op.logits.dim(1);
  const S scale = static_cast<S>(op.scale);
  cpu::ParallelFor(stream, op.logits.dim(0), 6 * vocabulary, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      FATHOM_CHECK(labels[i] < vocabulary)
          << "label " << labels[i] << " of a vocabulary of " << vocabulary;
      T* gradient = gradients.absent() ? nullptr : gradients[i];
      if (labels[i] >= 0) {
        losses[i] = RowLoss<T>(logits[i], vocabulary, labels[i], gradient, scale);
        continue;
      }
      losses[i] = 0;
      if (gradient != nullptr) std::fill_n(gradient, vocabulary, static_cast<T>(0));
    }
  });
}

}  // namespace

void RunOnCpu(const CrossEntropy& operation, CpuStream& stream) {
  const Tensor& typed = operation.d_logits.absent() ? operation.logits : operation.d_logits;
  cpu::Dispatch(typed.dtype(), [&](auto type) { Run<decltype(type)>(operation, stream); });
}

}  // namespace fathom
