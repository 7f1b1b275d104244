#include "runtime/model/tensor_parallel_linear.h"

#include "kernels/matmul.h"

namespace fathom {
namespace {

ParameterSpec SplitMatrix(const LayerSetup& setup, const std::string& name, Shape shape, int dim,
                          double deviation) {
  ParameterSpec spec{.name = name,
                     .shape = shape,
                     .role = ParameterRole::kMatrix,
                     .deviation = deviation,
                     .gradient = GradientOverRanks::kOwn};
  if (setup.tensor.size() > 1) {
    const ElementRange range = setup.tensor.PartOf(shape[dim]);
    spec.part = {.dim = dim, .begin = range.begin, .end = range.end};
  }
  return spec;
}

}  // namespace

ParameterSpec RowMatrix(const LayerSetup& setup, const std::string& name, Shape shape) {
  return SplitMatrix(setup, name, shape, 0, kInitialDeviation);
}

ParameterSpec ColumnMatrix(const LayerSetup& setup, const std::string& name, Shape shape) {
  return SplitMatrix(setup, name, shape, 1, setup.output_deviation);
}

void NormToAllRows(Pass& pass, const Rows& rows, TensorGroup& tensor, RmsNorm norm,
                   const Tensor& y) {
  if (!rows.split) {
    norm.y = y;
    Launch(pass.stream, norm);
    return;
  }
  ArenaScope scope(pass.arena);
  norm.y = pass.arena.New(y.dtype(), {pass.held.size(), y.dim(1)});
  Launch(pass.stream, norm);
  tensor.AllGatherRows(norm.y, y, pass.stream);
}

void LinearToSum(Pass& pass, const Rows& rows, TensorGroup& tensor, const Tensor& x,
                 const Tensor& w, const Tensor& output) {
  if (!rows.split) {
    LinearForward(pass.stream, x, w, output, rows.count);
    tensor.AllReduce(output, pass.stream);
    return;
  }
  ArenaScope scope(pass.arena);
  const Tensor part = pass.arena.New(output.dtype(), {rows.capacity, output.dim(1)});
  LinearForward(pass.stream, x, w, part, rows.count);
  tensor.ReduceScatterRows(part, output, pass.stream);
}

Tensor GradientOfAllRows(Pass& pass, const Rows& rows, TensorGroup& tensor,
                         const Tensor& d_output) {
  if (!rows.split) return d_output;
  const Tensor all = pass.arena.New(d_output.dtype(), {rows.capacity, d_output.dim(1)});
  tensor.AllGatherRows(d_output, all, pass.stream);
  return all;
}

Tensor LinearInputGradient(Pass& pass, const Rows& rows, TensorGroup& tensor, const Tensor& dy,
                           const Tensor& w) {
  const int64_t d = w.dim(1);
  const Tensor held = rows.split ? pass.arena.New(dy.dtype(), {pass.held.size(), d}) : Tensor();
  const Tensor part = pass.arena.New(dy.dtype(), {rows.capacity, d});
  LinearBackwardInput(pass.stream, dy, w, part, rows.count);
  if (!rows.split) {
    tensor.AllReduce(part, pass.stream);
    return part;
  }
  tensor.ReduceScatterRows(part, held, pass.stream);
  return held;
}

}  // namespace fathom
