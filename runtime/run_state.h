#pragma once

#include <string>
#include <vector>

#include "core/file.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/model/parameters.h"
#include "runtime/optimizer/optimizer.h"

namespace fathom {

// Tensors of a run between device and files, by name.

// Host copies of device tensors, in the form that files are written from.
class HostTensors {
 public:
  // Copies `tensor`; the array is valid while this object lives.
  absl::Status Add(const std::string& name, const Tensor& tensor, Stream& stream);
  const std::vector<NamedArray>& arrays() const { return arrays_; }

 private:
  std::vector<std::vector<char>> storage_;
  std::vector<NamedArray> arrays_;
};

// The masters.
absl::Status CopyWeights(const ParameterTable& parameters, Stream& stream, HostTensors* out);
// NAME.momentum, NAME.first, NAME.second and "step".
absl::Status CopyOptimizer(const Optimizer& optimizer, Stream& stream, HostTensors* out);

// Fills every master from a file, converting between floating-point types, and the weights. A
// parameter that the file lacks, a shape that differs, a tensor that the model has not, and a value
// that is not finite are refused in one sentence that names file and tensor.
absl::Status LoadWeights(const SafetensorsFile& file, const ParameterTable& parameters,
                         Stream& stream);
// Fills the optimizer's state, which must agree in names, shapes and dtype.
absl::Status LoadOptimizer(const SafetensorsFile& file, const Optimizer& optimizer, Stream& stream);

}  // namespace fathom
