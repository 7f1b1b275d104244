#pragma once

#include <string>

#include "kernels/norm.h"
#include "runtime/model/layer_setup.h"
#include "runtime/model/pass.h"

// Both ends of a pair of matrices that tensor ranks share: norm -> rows of the first matrix -> ...
// -> columns of the second -> sum over the ranks. m rows, of which `split` ones lie on this rank
// alone at the outer ends (see TensorGroup). On one rank each is the plain operation.
namespace fathom {

// The first matrix of a pair, of which this rank holds rows, and the second, of which it holds
// columns. `shape` is the whole matrix's, [out, in].
ParameterSpec RowMatrix(const LayerSetup& setup, const std::string& name, Shape shape);
ParameterSpec ColumnMatrix(const LayerSetup& setup, const std::string& name, Shape shape);
// The same of a routed expert, which the ranks share only with ExpertGroup::over_tensor.
ParameterSpec ExpertRowMatrix(const LayerSetup& setup, const std::string& name, Shape shape);
ParameterSpec ExpertColumnMatrix(const LayerSetup& setup, const std::string& name, Shape shape);

// y [m, d] = norm, whose output field is filled here, gathered from the ranks where rows are split.
void NormToAllRows(Pass& pass, const Rows& rows, TensorGroup& tensor, RmsNorm norm,
                   const Tensor& y);
// output = x w^T summed over the ranks: x [m, in of this rank], w [d, in of this rank]; output
// [m, d], or this rank's rows of it.
void LinearToSum(Pass& pass, const Rows& rows, TensorGroup& tensor, const Tensor& x,
                 const Tensor& w, const Tensor& output);

// output = the sum over the ranks of `part` [m, d]; with split rows this rank's rows of it, else
// output is `part` itself.
void SumParts(Pass& pass, const Rows& rows, TensorGroup& tensor, const Tensor& part,
              const Tensor& output);
// Where a part of `output`, which SumParts completes, is to be written: in the arena or `output`.
Tensor NewPart(Pass& pass, const Rows& rows, const Tensor& output);

// LinearToSum's gradient on all m rows, in the arena where it has to be gathered.
Tensor GradientOfAllRows(Pass& pass, const Rows& rows, TensorGroup& tensor, const Tensor& d_output);
// dy w summed over the ranks, in the arena: dy [m, out of this rank], w [out of this rank, d]; the
// result is [m, d], or this rank's rows of it.
Tensor LinearInputGradient(Pass& pass, const Rows& rows, TensorGroup& tensor, const Tensor& dy,
                           const Tensor& w);

}  // namespace fathom
