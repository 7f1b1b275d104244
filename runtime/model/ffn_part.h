#pragma once

#include <string>

#include "core/job.h"
#include "kernels/norm.h"
#include "runtime/model/parameters.h"
#include "runtime/model/pass.h"

namespace fathom {

// The feed-forward half of a layer on packed rows: f = Down * (silu(Gate y) * Up y), y =
// RMSNorm(s). As in AttentionPart, the layer fills the norm's operands.
class FfnPart {
 public:
  struct Saved {
    Tensor y;        // [m, d] T
    Tensor rstd;     // [m] stat
    Tensor gate_up;  // [m, 2F] T
  };

  FfnPart(const ModelConfig& config, const std::string& prefix, double output_deviation,
          ParameterTable& table);

  // `norm` has x, index, addend, sum. Writes f [m, d].
  void Forward(Pass& pass, const Rows& rows, RmsNorm norm, const Tensor& f, Saved* saved) const;
  // `norm` has x, addend, base, dx, dx_index, base2, dx2.
  void Backward(Pass& pass, const Rows& rows, const Saved& saved, const Tensor& d_f,
                RmsNormBackward norm) const;

 private:
  int64_t ffn_;
  double eps_;
  const Parameter* norm_;
  const FusedMatrix* gate_up_;
  const Parameter* down_;
};

}  // namespace fathom
