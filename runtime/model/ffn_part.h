#pragma once

#include <memory>
#include <string>

#include "runtime/model/feed_forward.h"
#include "runtime/model/gated_ffn.h"

namespace fathom {

// One FFN for all rows.
class FfnPart final : public FeedForward {
 public:
  FfnPart(const LayerSetup& setup, const std::string& prefix, GradientOverRanks norm_gradient);

  std::unique_ptr<Saved> Forward(Pass& pass, const Rows& rows, RmsNorm norm,
                                 const Tensor& f) const override;
  void Backward(Pass& pass, const Rows& rows, const Saved& saved, const Tensor& d_output,
                RmsNormBackward norm) const override;

 private:
  TensorGroup& tensor_;
  double eps_;
  const Parameter* norm_;
  GatedFfn ffn_;
};

}  // namespace fathom
