#include "runtime/model/dense_block.h"

#include "kernels/gated_residual.h"

namespace fathom {
namespace {

struct DenseSaved final : Saved {
  Tensor x;  // [held, d] the layer's input
  Tensor h;  // [held, d] x + a
  AttentionPart::Saved attention;
  std::unique_ptr<Saved> ffn;
};

// Ranks that hold different rows each have a part of the sum.
GradientOverRanks NormGradient(const TensorGroup& tensor) {
  return tensor.sequence() ? GradientOverRanks::kPartial : GradientOverRanks::kSame;
}

}  // namespace

DenseBlock::DenseBlock(const LayerSetup& setup, int64_t layer, const std::string& prefix)
    : attention_(setup, prefix, NormGradient(setup.tensor)),
      ffn_(MakeFeedForward(setup, layer, prefix, NormGradient(setup.tensor))) {}

std::unique_ptr<Saved> DenseBlock::Forward(Pass& pass) const {
  const Tensor x = pass.residual;
  const DType dtype = x.dtype();
  const Arena::Mark start = pass.arena.mark();
  // In evaluation the output may take the input's place.
  const Tensor y = pass.training ? pass.arena.New(dtype, x.shape()) : x;

  auto saved = std::make_unique<DenseSaved>();
  saved->x = x;
  saved->h = pass.arena.New(dtype, x.shape());
  // The attention's output, then the FFN's: only their sum is kept.
  const Tensor branch = pass.arena.New(dtype, x.shape());
  attention_.Forward(pass, pass.all, RmsNorm{.x = x}, branch, &saved->attention);
  saved->ffn =
      ffn_->Forward(pass, pass.all, RmsNorm{.x = x, .addend = branch, .sum = saved->h}, branch);
  Launch(pass.stream, GatedResidual{.gate = Gate::kNone, .x = saved->h, .f = branch, .y = y});
  pass.residual = y;
  if (pass.training) return saved;
  pass.arena.Release(start);
  return nullptr;
}

void DenseBlock::Backward(Pass& pass, const Saved& saved_base) const {
  const auto& saved = static_cast<const DenseSaved&>(saved_base);
  ArenaScope scope(pass.arena);
  const Tensor d_y = pass.d_residual;
  const Tensor d_h = pass.arena.New(d_y.dtype(), d_y.shape());
  ffn_->Backward(pass, pass.all, *saved.ffn, d_y,
                 RmsNormBackward{.x = saved.h, .base = d_y, .dx = d_h});
  attention_.Backward(pass, pass.all, saved.attention, d_h,
                      RmsNormBackward{.x = saved.x, .base = d_h, .dx = d_y});
  pass.residual = saved.x;
}

}  // namespace fathom
