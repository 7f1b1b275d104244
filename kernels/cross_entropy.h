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

// The same where the ranks of a group share out the vocabulary: each has a shard of every row, the
// logits of the V tokens from first_token on (V may be 0), and all have the same labels. Three
// operations, with two all-reduces over the group between them:
//
//   ShardMaximum       ->  all-reduce `maximum`, taking the largest
//   ShardSums          ->  all-reduce `sums`, adding
//   ShardCrossEntropy      every rank has all losses, and the gradients of its own logits
//
// A shard that is the whole vocabulary has the bits of CrossEntropy. A label that is in no rank's
// shard cannot be noticed here and gives a wrong loss.

// maximum_i = max_v logits_iv, and -infinity where V is 0.
struct ShardMaximum {
  static constexpr std::string_view kName = "shard_maximum";
  Tensor logits;   // [c, V] stat
  Tensor maximum;  // [c] stat
  Cost cost() const;
};
void RunOnCpu(const ShardMaximum& operation, CpuStream& stream);

// sums_0i = sum_v exp(logits_iv - maximum_i). sums_1i = logits_i,label - maximum_i where the shard
// has the label, else 0.
struct ShardSums {
  static constexpr std::string_view kName = "shard_sums";
  Tensor logits;  // [c, V] stat
  Tensor labels;  // [c] int32, of the whole vocabulary
  int64_t first_token = 0;
  Tensor maximum;  // [c] stat, of the whole vocabulary
  Tensor sums;     // [2, c] stat
  Cost cost() const;
};
void RunOnCpu(const ShardSums& operation, CpuStream& stream);

// losses_i = log(sums_0i) - sums_1i. d_logits_iv = scale * d(losses_i)/d(logits_iv), which is
// scale * (exp(logits_iv - maximum_i) / sums_0i - (1 if v is the label)). A row whose label is
// negative is not counted: its loss and gradients are 0.
struct ShardCrossEntropy {
  static constexpr std::string_view kName = "shard_cross_entropy";
  Tensor logits;  // [c, V] stat; not read where d_logits is absent
  Tensor labels;  // [c] int32, of the whole vocabulary
  int64_t first_token = 0;
  Tensor maximum;   // [c] stat, of the whole vocabulary; not read where d_logits is absent
  Tensor sums;      // [2, c] stat, of the whole vocabulary
  Tensor d_logits;  // [c, V] T, or absent; may be `logits` itself
  double scale = 1;
  Tensor losses;  // [c] stat
  Cost cost() const;
};
void RunOnCpu(const ShardCrossEntropy& operation, CpuStream& stream);

}  // namespace fathom
