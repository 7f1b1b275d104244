#include "runtime/model/gated_ffn.h"

#include "kernels/matmul.h"
#include "kernels/swiglu.h"
#include "runtime/model/tensor_parallel_linear.h"

namespace fathom {

GatedFfn::GatedFfn(const LayerSetup& setup, const std::string& prefix, int64_t width)
    : width_(width / setup.tensor.size()) {
  const int64_t d = setup.config.d;
  gate_up_ = setup.table.AddFused({RowMatrix(setup, prefix + "gate_proj.weight", {width, d}),
                                   RowMatrix(setup, prefix + "up_proj.weight", {width, d})});
  down_ = setup.table.Add(ColumnMatrix(setup, prefix + "down_proj.weight", {d, width}));
}

void GatedFfn::Up(Pass& pass, const Tensor& y, const Tensor& count, const Tensor& gate_up) const {
  LinearForward(pass.stream, y, gate_up_->weight, gate_up, count);
}

void GatedFfn::Down(Pass& pass, const Tensor& gate_up, const Tensor& count,
                    const Tensor& output) const {
  ArenaScope scope(pass.arena);
  const Tensor activation = pass.arena.New(gate_up.dtype(), {gate_up.dim(0), width_});
  Launch(pass.stream, SwiGlu{.gate_up = gate_up, .y = activation, .count = count});
  LinearForward(pass.stream, activation, down_->weight, output, count);
}

Tensor GatedFfn::DownBackward(Pass& pass, const Tensor& d_output, const Tensor& gate_up,
                              const Tensor& count) const {
  Stream& stream = pass.stream;
  const DType dtype = d_output.dtype();
  const int64_t m = d_output.dim(0);
  const Tensor d_gate_up = pass.arena.New(dtype, {m, 2 * width_});
  ArenaScope scope(pass.arena);
  const Tensor d_activation = pass.arena.New(dtype, {m, width_});
  const Tensor activation = pass.arena.New(dtype, {m, width_});
  LinearBackwardInput(stream, d_output, down_->weight, d_activation, count);
  Launch(stream, SwiGluBackward{.gate_up = gate_up,
                                .dy = d_activation,
                                .d_gate_up = d_gate_up,
                                .y = activation,
                                .count = count});
  LinearBackwardWeight(stream, d_output, activation, down_->gradient, count);
  return d_gate_up;
}

void GatedFfn::UpBackward(Pass& pass, const Tensor& d_gate_up, const Tensor& y,
                          const Tensor& count) const {
  LinearBackwardWeight(pass.stream, d_gate_up, y, gate_up_->gradient, count);
}

}  // namespace fathom
