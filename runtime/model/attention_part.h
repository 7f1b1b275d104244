#pragma once

#include <string>

#include "core/job.h"
#include "kernels/norm.h"
#include "runtime/model/parameters.h"
#include "runtime/model/pass.h"

namespace fathom {

// The attention half of a layer on packed rows: a = O * attention(rotary(norm(Q y)), rotary(norm(K
// y)), V y), y = RMSNorm(s). What s is made of (gathered rows, an addend) and where its gradient
// goes is the layer's business: the layer fills those fields of the norm operations.
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

  // Adds the parameters under `prefix` ("model.layers.7."). `output_deviation`: of o_proj's initial
  // values.
  AttentionPart(const ModelConfig& config, const std::string& prefix, double output_deviation,
                ParameterTable& table);

  // `norm` has x, index, addend, sum. Writes a [m, d]; what it saves lives in the pass's arena.
  void Forward(Pass& pass, const Rows& rows, RmsNorm norm, const Tensor& a, Saved* saved) const;
  // `norm` has x, addend, base, dx, dx_index, base2, dx2. Scratch is given back.
  void Backward(Pass& pass, const Rows& rows, const Saved& saved, const Tensor& d_a,
                RmsNormBackward norm) const;

 private:
  int64_t heads_, kv_heads_, head_dim_;
  double eps_, scale_;
  const Parameter* norm_;
  const FusedMatrix* qkv_;
  const Parameter* q_norm_;
  const Parameter* k_norm_;
  const Parameter* o_;
};

}  // namespace fathom
