#pragma once

#include <memory>

#include "runtime/model/pass.h"

namespace fathom {

// One layer of the model. Kinds: DenseBlock, SparseBlock, each with any FeedForward.
class Block {
 public:
  virtual ~Block() = default;
  // Replaces pass.residual by the layer's output. In training, returns what backward needs, whose
  // tensors stay in the pass's arena; otherwise nullptr, and the arena is left as it was.
  virtual std::unique_ptr<Saved> Forward(Pass& pass) const = 0;
  // With pass.residual the layer's output and pass.d_residual its gradient: restores the layer's
  // input and its gradient in their place, and adds to the parameters' gradients. Leaves the arena
  // as it was.
  virtual void Backward(Pass& pass, const Saved& saved) const = 0;
};

}  // namespace fathom
