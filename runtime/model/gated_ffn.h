#pragma once

#include <string>

#include "runtime/model/layer_setup.h"
#include "runtime/model/pass.h"

namespace fathom {

// The three matrices of an FFN, Down * (silu(Gate y) * Up y), of whose width F tensor ranks have
// F/T each; sums over the ranks are the caller's. m rows, of which `count` are in use.
class GatedFfn {
 public:
  // Names: PREFIXgate_proj.weight and so on. `width`: F.
  GatedFfn(const LayerSetup& setup, const std::string& prefix, int64_t width);

  int64_t gate_up_width() const { return 2 * width_; }

  // gate_up [m, 2F/T] = y [Gate, Up]^T.
  void Up(Pass& pass, const Tensor& y, const Tensor& count, const Tensor& gate_up) const;
  // output [m, d] = this rank's part of the FFN's output.
  void Down(Pass& pass, const Tensor& gate_up, const Tensor& count, const Tensor& output) const;
  // From the gradient of the output on all rows to that of gate_up, in the arena; adds to Down's.
  Tensor DownBackward(Pass& pass, const Tensor& d_output, const Tensor& gate_up,
                      const Tensor& count) const;
  // Adds to Gate's and Up's gradients.
  void UpBackward(Pass& pass, const Tensor& d_gate_up, const Tensor& y, const Tensor& count) const;

  // [Gate, Up], for the gradient of y.
  const Tensor& up_weight() const { return gate_up_->weight; }

 private:
  int64_t width_;  // of this rank
  const FusedMatrix* gate_up_;
  const Parameter* down_;
};

}  // namespace fathom
