#pragma once

#include "core/job.h"
#include "runtime/model/parameters.h"
#include "runtime/model/pass.h"

namespace fathom {

// Final norm, language-model head and cross-entropy, in chunks of rows, so that n x V logits never
// exist.
class Head {
 public:
  Head(const ModelConfig& config, ParameterTable& table);

  // losses [n] stat: the cross-entropy of each row, 0 where its label [n] int32 is negative.
  // In training also the head's own gradients, of loss_weight * sum of the losses: the gradient of
  // the logits exists only while its chunk does.
  void Forward(Pass& pass, const Tensor& labels, double loss_weight, const Tensor& losses);
  // Sets pass.d_residual to the gradient of pass.residual.
  void Backward(Pass& pass) const;

  // logits [n, V] stat of a pass whose layers have run. For tests and generation: small n only.
  void Logits(Pass& pass, const Tensor& logits) const;

 private:
  struct HeadSaved;

  int64_t vocabulary_;
  double eps_;
  const Parameter* norm_;
  const Parameter* head_;
};

}  // namespace fathom
