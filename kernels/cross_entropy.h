#pragma once

#include <string_view>

#include "kernels/launch.h"

namespace fathom {

// Softmax cross-entropy of a chunk of rows: losses_i = log sum_v exp(logits_iv) - logits_i,label.
// d_logits_i = scale * d(losses_i)/d(logits_i). A row whose label is negative is not counted: its
// loss and gradients are 0.
struct CrossEntropy {
  static constexpr std::string_view kName = "cross_entropy";
  Tensor logits;    // [c, V] stat
  Tensor labels;    // [c] int32
  Tensor d_logits;  // [c, V] T, or absent; may be `logits` itself
  double scale = 1;
  Tensor losses;  // [c] stat
  Cost cost() const;
};
void RunOnCpu(const CrossEntropy& operation, CpuStream& stream);

}  // namespace fathom
