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

ParameterSpec OfExpert(const LayerSetup& setup, ParameterSpec spec) {
  spec.of_expert = true;
  if (!setup.experts.over_tensor()) spec.part = {};
  return spec;
}

}  // namespace

ParameterSpec RowMatrix(const LayerSetup& setup, const std::string& name, Shape shape) {
  return SplitMatrix(setup, name, shape, 0, kInitialDeviation);
}

ParameterSpec ColumnMatrix(const LayerSetup& setup, const std::string& name, Shape shape) {
  return SplitMatrix(setup, name, shape, 1, setup.output_deviation);
}

ParameterSpec ExpertRowMatrix(const LayerSetup& setup, const std::string& name, Shape shape) {
  return OfExpert(setup, RowMatrix(setup, name, shape));
}

ParameterSpec ExpertColumnMatrix(const LayerSetup& setup, const std::string& name, Shape shape) {
  return OfExpert(setup, ColumnMatrix(setup, name, shape));
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
  ArenaScope scope(pass.arena);
  const Tensor part = NewPart(pass, rows, output);
  LinearForward(pass.stream, x, w, part, rows.count);
  SumParts(pass, rows, tensor, part, output);
}

Tensor NewPart(Pass& pass, const Rows& rows, const Tensor& output) {
  if (!rows.split) return output;
  return pass.arena.New(output.dtype(), {rows.capacity, output.dim(1)});
}

void SumParts(Pass& pass, const Rows& rows, TensorGroup& tensor, const Tensor& part,
              const Tensor& output) {
  if (rows.split) {
    tensor.ReduceScatterRows(part, output, pass.stream);
  } else {
    tensor.AllReduce(part, pass.stream);
  }
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
  const int64_t m = rows.split ? pass.held.size() : rows.capacity;
  const Tensor sum = pass.arena.New(dy.dtype(), {m, w.dim(1)});
  const Tensor part = NewPart(pass, rows, sum);
  LinearBackwardInput(pass.stream, dy, w, part, rows.count);
  SumParts(pass, rows, tensor, part, sum);
  return sum;
}

}  // namespace fathom
