#include "kernels/cross_entropy.h"

#include <algorithm>
#include <limits>

#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/vector_math.h"

namespace fathom {
namespace {

template <class T>
cpu::Stat<T> RowLoss(T* logits, int64_t vocabulary, int64_t label, bool gradient,
                     cpu::Stat<T> scale) {
  using S = cpu::Stat<T>;
  const auto at = [&](int64_t j) { return static_cast<S>(logits[j]); };
  const S largest = cpu::LaneMax<S>(vocabulary, std::numeric_limits<S>::lowest(), at);
  const S sum = cpu::LaneSum<S>(vocabulary, [&](int64_t j) { return cpu::Exp(at(j) - largest); });
  // log(sum) - (logit - largest): the differences are exact where it matters.
  const S loss = std::log(sum) - (at(label) - largest);
  if (gradient) {
    const S target = at(label);
    const S factor = scale / sum;
    for (int64_t j = 0; j < vocabulary; ++j) {
      logits[j] = static_cast<T>(factor * cpu::Exp(at(j) - largest));
    }
    logits[label] = static_cast<T>(factor * cpu::Exp(target - largest) - scale);
  }
  return loss;
}

template <class T>
void Run(const CrossEntropy& op, CpuStream& stream) {
  using S = cpu::Stat<T>;
  const cpu::RowsOf<T> logits(op.logits);
  const int32_t* labels = op.labels.data<int32_t>();
  S* losses = op.losses.data<S>();
  const int64_t vocabulary = op.logits.dim(1);
  const S scale = static_cast<S>(op.scale);
  cpu::ParallelFor(stream, op.logits.dim(0), 6 * vocabulary, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      FATHOM_CHECK(labels[i] < vocabulary)
          << "label " << labels[i] << " of a vocabulary of " << vocabulary;
      if (labels[i] >= 0) {
        losses[i] = RowLoss(logits[i], vocabulary, labels[i], op.gradient, scale);
        continue;
      }
      losses[i] = 0;
      if (op.gradient) std::fill_n(logits[i], vocabulary, static_cast<T>(0));
    }
  });
}

}  // namespace

void RunOnCpu(const CrossEntropy& operation, CpuStream& stream) {
  cpu::Dispatch(operation.logits.dtype(),
                [&](auto type) { Run<decltype(type)>(operation, stream); });
}

}  // namespace fathom
