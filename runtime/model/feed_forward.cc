#include "runtime/model/feed_forward.h"

#include "runtime/model/ffn_part.h"
#include "runtime/model/moe_part.h"

namespace fathom {

std::unique_ptr<FeedForward> MakeFeedForward(const LayerSetup& setup, int64_t layer,
                                             const std::string& prefix,
                                             GradientOverRanks norm_gradient) {
  if (setup.config.plan.layers[layer].spec.experts) {
    return std::make_unique<MoePart>(setup, layer, prefix, norm_gradient);
  }
  return std::make_unique<FfnPart>(setup, prefix, norm_gradient);
}

}  // namespace fathom
