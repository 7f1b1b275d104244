#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/model/expert_exchange.h"
#include "runtime/model/expert_router.h"
#include "runtime/model/feed_forward.h"
#include "runtime/model/gated_ffn.h"

namespace fathom {

// A mixture of experts: f_i = Shared(y_i) + the sum over the chosen experts e of w_ie
// Expert_e(y_i), each expert an FFN of its own (Dai et al., "DeepSeekMoE", 2024). No row is
// dropped, and an expert without rows costs nothing.
//
// Rows are sorted by expert, travel to the ranks of their experts, go through grouped products, and
// travel back. The shared experts' products run while rows are on their way. Where ranks hold whole
// experts each tensor rank sends its part of the rows; where they hold parts of every expert's
// width each sends all rows. Either way what a tensor rank computes is its part of a sum over them,
// which the shared experts' sum brings together.
class MoePart final : public FeedForward {
 public:
  MoePart(const LayerSetup& setup, int64_t layer, const std::string& prefix,
          GradientOverRanks norm_gradient);

  std::unique_ptr<Saved> Forward(Pass& pass, const Rows& rows, RmsNorm norm,
                                 const Tensor& f) const override;
  void Backward(Pass& pass, const Rows& rows, const Saved& saved, const Tensor& d_output,
                RmsNormBackward norm) const override;

 private:
  struct MoeSaved;
  // This rank's experts.
  struct Experts {
    std::vector<const FusedMatrix*> gate_up;  // [2 F/T, d] each
    std::vector<const Parameter*> down;       // [d, F/T] each
  };

  void AddExperts(const LayerSetup& setup, const std::string& prefix);
  // f of this rank's experts: out [received, d] from s.x; writes s.gate_up.
  void RunExperts(Pass& pass, const MoeSaved& s, const Tensor& out) const;
  // d_x [received, d] from d_out; adds to the experts' gradients.
  void RunExpertsBackward(Pass& pass, const MoeSaved& s, const Tensor& d_out,
                          const Tensor& d_x) const;

  TensorGroup& tensor_;
  ExpertGroup& group_;
  double eps_;
  int64_t routed_;
  int64_t width_;  // of an expert on this rank
  const Parameter* norm_;
  ExpertRouter router_;
  std::optional<GatedFfn> shared_;
  Experts experts_;
};

}  // namespace fathom
