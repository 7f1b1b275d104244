#pragma once

#include <string>

#include "runtime/model/attention_part.h"
#include "runtime/model/block.h"
#include "runtime/model/feed_forward.h"

namespace fathom {

// A layer that sees all tokens: h = x + Attention(norm(x)), y = h + FFN(norm(h)). Under sequence
// parallelism x, h and y are this rank's rows.
class DenseBlock final : public Block {
 public:
  // `layer`: the layer's place in the plan, which also says what FFN it has.
  DenseBlock(const LayerSetup& setup, int64_t layer, const std::string& prefix);

  std::unique_ptr<Saved> Forward(Pass& pass) const override;
  void Backward(Pass& pass, const Saved& saved) const override;

 private:
  AttentionPart attention_;
  std::unique_ptr<FeedForward> ffn_;
};

}  // namespace fathom
