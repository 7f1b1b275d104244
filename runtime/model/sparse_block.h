#pragma once

#include <string>

#include "runtime/model/attention_part.h"
#include "runtime/model/block.h"
#include "runtime/model/feed_forward.h"

namespace fathom {

// A layer that sees the tokens which its router selects (X-MoD and Mixture-of-Depths):
//   s = x.w,  z = s - tau * counts;  the k = L/K largest z of a sequence are selected, or z >= 0
//   a = Attention(norm(x)) among the selected, f = FFN(norm(x + a))
//   the selected rows become GatedResidual(x, a, f, sigmoid(z)), the others stay.
// The residual is updated in place; backward undoes it from the saved rows, so that no copy of all
// rows is made.
//
// With tensor ranks the logits of a token are computed by one of them and gathered, so that all
// make the same selection. The selected rows stand on every rank; sums go over them alone. Under
// sequence parallelism they are gathered from the ranks that hold them, and each rank takes back
// its own.
class SparseBlock final : public Block {
 public:
  // `layer`: the layer's place in the plan.
  SparseBlock(const LayerSetup& setup, int64_t layer, const std::string& prefix);

  std::unique_ptr<Saved> Forward(Pass& pass) const override;
  void Backward(Pass& pass, const Saved& saved) const override;

 private:
  struct SparseSaved;

  // The router's logits of all tokens.
  void ComputeLogits(Pass& pass, const Tensor& s) const;
  // The router's logits and the tokens that they select.
  void Route(Pass& pass, SparseSaved& saved) const;
  // The selected rows of `residual` [held, d], from all ranks, under sequence parallelism.
  void GatherSelected(Pass& pass, const Rows& rows, const Tensor& residual, const Tensor& x) const;
  void RouterBackwardPass(Pass& pass, const SparseSaved& saved, const Tensor& dz) const;
  // What the auxiliary loss and the causal threshold look at.
  const Tensor& RoutedLogit(const SparseSaved& saved) const;

  TensorGroup& tensor_;
  int64_t layer_;
  int64_t sparsity_;
  Gate gate_;
  Alignment alignment_;
  double tau_, increment_;
  const Parameter* router_;
  const Parameter* scale_ = nullptr;  // Gate::kXMod only
  AttentionPart attention_;
  std::unique_ptr<FeedForward> ffn_;
};

}  // namespace fathom
