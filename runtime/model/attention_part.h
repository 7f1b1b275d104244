#pragma once

#include <string>

#include "kernels/norm.h"
#include "runtime/model/layer_setup.h"
#include "runtime/model/pass.h"

namespace fathom {

// The attention half of a layer on packed rows: a = O * attention(rotary(norm(Q y)), rotary(norm(K
// y)), V y), y = RMSNorm(s). What s is made of (gathered rows, an addend) and where its gradient
// goes is the layer's business: the layer fills those fields of the norm operations. Tensor ranks
// have H/T query and G/T key/value heads each, which H and G stand for below. With Rows::split the
// norm's operands and a are this rank's rows.
class AttentionPart {
 public:
  struct Saved {
    Tensor y;       // [m, d] T
    Tensor rstd;    // [m] stat
    Tensor qkv;     // [m, (H + 2G) h] T, before head norm and rotation
    Tensor qk;      // [m, (H + G) h] T, after them
    Tensor q_rstd;  // [m, H] stat
    Tensor k_rstd;  // [m, G] stat
    Tensor o;       // [m, H h] T
    Tensor lse;     // [m, H] stat
  };

  // Adds the parameters under `prefix` ("model.layers.7."). `norm_gradient`: of the weight of its
  // norm.
  AttentionPart(const LayerSetup& setup, const std::string& prefix,
                GradientOverRanks norm_gradient);

  // `norm` has x, index, addend, sum. Writes a [m, d]; what it saves lives in the pass's arena.
  void Forward(Pass& pass, const Rows& rows, RmsNorm norm, const Tensor& a, Saved* saved) const;
  // `norm` has x, addend, base, dx, dx_index, base2, dx2. Scratch is given back.
  void Backward(Pass& pass, const Rows& rows, const Saved& saved, const Tensor& d_output,
                RmsNormBackward norm) const;

 private:
  TensorGroup& tensor_;
  int64_t heads_, kv_heads_, head_dim_;  // of this rank
  double eps_, scale_;
  const Parameter* norm_;
  const FusedMatrix* qkv_;
  const Parameter* q_norm_;
  const Parameter* k_norm_;
  const Parameter* o_;
};

}  // namespace fathom
