#pragma once

#include <string>

#include "kernels/norm.h"
#include "runtime/model/layer_setup.h"
#include "runtime/model/pass.h"

namespace fathom {

// The feed-forward half of a layer on packed rows: f = Down * (silu(Gate y) * Up y), y =
// RMSNorm(s). As in AttentionPart, the layer fills the norm's operands, which
// are this rank's rows, as f is, with Rows::split. Tensor ranks have F/T of the FFN's width each.
class FfnPart {
 public:
  struct Saved {
    Tensor y;        // [m, d] T
    Tensor rstd;     // [m] stat
    Tensor gate_up;  // [m, 2F] T
  };

  FfnPart(const LayerSetup& setup, const std::string& prefix, GradientOverRanks norm_gradient);

  // `norm` has x, index, addend, sum. Writes f [m, d].
  void Forward(Pass& pass, const Rows& rows, RmsNorm norm, const Tensor& f, Saved* saved) const;
  // `norm` has x, addend, base, dx, dx_index, base2, dx2.
  void Backward(Pass& pass, const Rows& rows, const Saved& saved, const Tensor& d_output,
                RmsNormBackward norm) const;

 private:
  TensorGroup& tensor_;
  int64_t ffn_;  // of this rank
  double eps_;
  const Parameter* norm_;
  const FusedMatrix* gate_up_;
  const Parameter* down_;
};

}  // namespace fathom
