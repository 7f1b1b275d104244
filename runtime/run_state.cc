#include "runtime/run_state.h"

#include <cmath>
#include <utility>

#include "core/status.h"
#include "runtime/checkpoint/array_values.h"

namespace fathom {
namespace {

constexpr char kStepTensor[] = "step";

// Whether the shapes name the same elements: a scalar may be written as [] or [1].
bool SameShape(const Shape& a, const Shape& b) {
  return a == b || (a.rank() <= 1 && b.rank() <= 1 && a.elements() == 1 && b.elements() == 1);
}

absl::Status CheckFinite(const SafetensorsFile& file, const std::string& name,
                         const std::vector<double>& values) {
  for (size_t i = 0; i < values.size(); ++i) {
    if (!std::isfinite(values[i])) {
      return absl::InvalidArgumentError(absl::StrCat(file.path(), ": element ", i, " of ", name,
                                                     " is ", values[i],
                                                     "; weights must be finite numbers"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<const NamedArray*> FindTensor(const SafetensorsFile& file, const std::string& name,
                                             const Shape& shape) {
  const NamedArray* array = file.Find(name);
  if (array == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(file.path(), " has no tensor ", name, ", which the job's model needs"));
  }
  if (!SameShape(array->shape, shape)) {
    return absl::InvalidArgumentError(absl::StrCat(file.path(), ": ", name, " is ",
                                                   array->shape.ToString(),
                                                   ", the job's model has ", shape.ToString()));
  }
  return array;
}

absl::Status LoadTensor(const SafetensorsFile& file, const std::string& name, const Tensor& tensor,
                        Stream& stream) {
  FATHOM_ASSIGN_OR_RETURN(const NamedArray* array, FindTensor(file, name, tensor.shape()));
  if (array->dtype == DType::kInt32 || array->dtype == DType::kInt64) {
    return absl::InvalidArgumentError(absl::StrCat(file.path(), ": ", name, " is ",
                                                   std::string(Name(array->dtype)),
                                                   "; float32, float64 or bfloat16 is needed"));
  }
  std::vector<double> values(tensor.elements());
  ReadElements(*array, 0, values.size(), values.data());
  FATHOM_RETURN_IF_ERROR(CheckFinite(file, name, values));
  std::vector<char> converted(tensor.bytes());
  ConvertElements(values.data(), DType::kFloat64, converted.data(), tensor.dtype(), values.size());
  stream.CopyToDevice(converted.data(), tensor);
  return stream.Synchronize();
}

}  // namespace

absl::Status HostTensors::Add(const std::string& name, const Tensor& tensor, Stream& stream) {
  storage_.emplace_back(tensor.bytes());
  stream.CopyToHost(tensor, storage_.back().data());
  FATHOM_RETURN_IF_ERROR(stream.Synchronize());
  arrays_.push_back({.name = name,
                     .dtype = tensor.dtype(),
                     .shape = tensor.shape(),
                     .data = storage_.back().data()});
  return absl::OkStatus();
}

absl::Status CopyWeights(const ParameterTable& parameters, Stream& stream, HostTensors* out) {
  for (const Parameter& parameter : parameters.all()) {
    FATHOM_RETURN_IF_ERROR(out->Add(parameter.spec.name, parameter.master, stream));
  }
  return absl::OkStatus();
}

absl::Status CopyOptimizer(const Optimizer& optimizer, Stream& stream, HostTensors* out) {
  for (const Optimizer::StateTensor& state : optimizer.state()) {
    FATHOM_RETURN_IF_ERROR(out->Add(state.name, state.tensor, stream));
  }
  return out->Add(kStepTensor, optimizer.step(), stream);
}

absl::Status LoadWeights(const SafetensorsFile& file, const ParameterTable& parameters,
                         Stream& stream) {
  for (const Parameter& parameter : parameters.all()) {
    FATHOM_RETURN_IF_ERROR(LoadTensor(file, parameter.spec.name, parameter.master, stream));
  }
  for (const NamedArray& array : file.tensors()) {
    if (parameters.Find(array.name) == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(file.path(), " has a tensor ", array.name,
                                                     ", which the job's model has not"));
    }
  }
  parameters.RoundWeights(stream);
  return absl::OkStatus();
}

absl::Status LoadOptimizer(const SafetensorsFile& file, const Optimizer& optimizer,
                           Stream& stream) {
  for (const Optimizer::StateTensor& state : optimizer.state()) {
    FATHOM_RETURN_IF_ERROR(LoadTensor(file, state.name, state.tensor, stream));
  }
  return LoadTensor(file, kStepTensor, optimizer.step(), stream);
}

}  // namespace fathom
