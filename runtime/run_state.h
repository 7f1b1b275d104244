#pragma once

#include <set>
#include <string>
#include <vector>

#include "core/job.h"
#include "parallel/rank_groups.h"
#include "runtime/checkpoint/tensor_source.h"
#include "runtime/gather.h"
#include "runtime/model/parameters.h"
#include "runtime/optimizer/optimizer.h"

namespace fathom {

// Tensors of a run between device and files, by name. With several ranks each gives and takes its
// part: files hold whole tensors, so any layout loads what another one wrote.

// The optimizer's own numbers, beside those of the parameters.
inline constexpr char kStepTensor[] = "step";

// What this rank gives of the masters: each element of the model is given by one rank, and data
// ranks, which all hold the same, give what they own (ParameterBucket::OwnedBy).
std::vector<TensorPiece> WeightPieces(const ParameterTable& parameters, RankGroups& groups);
// Of the gradients, once they are summed over the ranks. What is not trained has none.
std::vector<TensorPiece> GradientPieces(const ParameterTable& parameters, RankGroups& groups);
// NAME.momentum, NAME.first, NAME.second and "step", likewise.
std::vector<TensorPiece> OptimizerPieces(const Optimizer& optimizer, RankGroups& groups);

// How many threads read files when a rank loads: the cores, and at most 8.
int LoadingThreads();

// Fills this rank's part of every master from a file, converting between floating-point types, and
// the weights. A parameter that the file lacks, a shape that differs, a tensor that is not one of
// the model's `names`, and a value that is not finite are refused in one sentence that names file
// and tensor.
absl::Status LoadWeights(const TensorSource& source, const std::set<std::string>& names,
                         const ParameterTable& parameters, Stream& stream);
// The names of all parameters of a model.
std::set<std::string> ParameterNames(const ModelConfig& model);

// Fills the optimizer's state, which must agree in names, shapes and dtype.
absl::Status LoadOptimizer(const TensorSource& source, const Optimizer& optimizer, Stream& stream);

}  // namespace fathom
