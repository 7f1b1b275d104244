#pragma once

#include "runtime/model/layer_setup.h"
#include "runtime/model/pass.h"

namespace fathom {

// Final norm, language-model head and cross-entropy, in chunks of rows, so that n x V logits never
// exist. Tensor ranks hold the head's rows of V/T tokens each: logits stay where they are, and the
// ranks share the maximum, the sum and the label's logit of each row.
class Head {
 public:
  explicit Head(const LayerSetup& setup);

  // losses [n] stat: the cross-entropy of each row, 0 where its label [n] int32 is negative.
  // In training also the head's own gradients, of loss_weight * sum of the losses: the gradient of
  // the logits exists only while its chunk does.
  void Forward(Pass& pass, const Tensor& labels, double loss_weight, const Tensor& losses);
  // Sets pass.d_residual to the gradient of pass.residual.
  void Backward(Pass& pass) const;

  // logits [n, V] stat of a pass whose layers have run. For tests and generation: small n only, and
  // one tensor rank.
  void Logits(Pass& pass, const Tensor& logits) const;

 private:
  struct HeadSaved;

  // The losses of a chunk of rows, and in place of the logits [c, V/T] or in `d_logits` their
  // gradients.
  void CrossEntropyOverRanks(Pass& pass, const Tensor& logits, const Tensor& labels,
                             const Tensor& d_logits, double scale, const Tensor& losses);

  TensorGroup& tensor_;
  ElementRange tokens_;  // whose logits this rank computes
  double eps_;
  const Parameter* norm_;
  const Parameter* head_;
};

}  // namespace fathom
