#pragma once

#include <memory>
#include <string>

#include "kernels/norm.h"
#include "runtime/model/layer_setup.h"
#include "runtime/model/pass.h"

namespace fathom {

// The feed-forward half of a layer on packed rows: f = FFN(y), y = RMSNorm(s). Kinds: FfnPart,
// MoePart. As in AttentionPart, the layer fills the norm's operands, which are this rank's rows, as
// f is, with Rows::split.
class FeedForward {
 public:
  virtual ~FeedForward() = default;

  // `norm` has x, index, addend, sum. Writes f [m, d]; what backward needs lives in the pass's
  // arena.
  virtual std::unique_ptr<Saved> Forward(Pass& pass, const Rows& rows, RmsNorm norm,
                                         const Tensor& f) const = 0;
  // `norm` has x, addend, base, dx, dx_index, base2, dx2. Scratch is given back.
  virtual void Backward(Pass& pass, const Rows& rows, const Saved& saved, const Tensor& d_output,
                        RmsNormBackward norm) const = 0;
};

// The FFN of layer `layer` of the plan, with its parameters under `prefix` ("model.layers.7.").
// `norm_gradient`: of the weight of its norm.
std::unique_ptr<FeedForward> MakeFeedForward(const LayerSetup& setup, int64_t layer,
                                             const std::string& prefix,
                                             GradientOverRanks norm_gradient);

}  // namespace fathom
