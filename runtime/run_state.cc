#include "runtime/run_state.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "core/accounting.h"
#include "core/status.h"
#include "runtime/checkpoint/array_values.h"

namespace fathom {
namespace {

// Whether the shapes name the same elements: a scalar may be written as [] or [1].
bool SameShape(const Shape& a, const Shape& b) {
  return a == b || (a.rank() <= 1 && b.rank() <= 1 && a.elements() == 1 && b.elements() == 1);
}

// `first`: the place of values[0] in the tensor.
absl::Status CheckFinite(const SafetensorsFile& file, const std::string& name, int64_t first,
                         const double* values, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    if (!std::isfinite(values[i])) {
      return absl::InvalidArgumentError(absl::StrCat(file.path(), ": element ", first + i, " of ",
                                                     name, " is ", values[i],
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

// Fills `tensor`, which is elements `range` of a part of the tensor `name`.
absl::Status LoadTensor(const SafetensorsFile& file, const std::string& name, const Shape& whole,
                        const TensorPart& part, const ElementRange& range, const Tensor& tensor,
                        Stream& stream) {
  FATHOM_ASSIGN_OR_RETURN(const NamedArray* array, FindTensor(file, name, whole));
  if (array->dtype == DType::kInt32 || array->dtype == DType::kInt64) {
    return absl::InvalidArgumentError(absl::StrCat(file.path(), ": ", name, " is ",
                                                   std::string(Name(array->dtype)),
                                                   "; float32, float64 or bfloat16 is needed"));
  }
  std::vector<double> values(range.size());
  absl::Status finite;
  VisitRuns(whole, part, range, [&](int64_t from, int64_t to, int64_t count) {
    ReadElements(*array, from, count, values.data() + to);
    if (finite.ok()) finite = CheckFinite(file, name, from, values.data() + to, count);
  });
  FATHOM_RETURN_IF_ERROR(finite);
  std::vector<char> converted(tensor.bytes());
  ConvertElements(values.data(), DType::kFloat64, converted.data(), tensor.dtype(), values.size());
  stream.CopyToDevice(converted.data(), tensor);
  return stream.Synchronize();
}

// Of tensors that all ranks of a copy hold, the first one's counts.
bool GivesAway(const Parameter& parameter, RankGroups& groups) {
  return !parameter.spec.part.whole() || groups.parts(parameter.spec.of_expert).rank() == 0;
}

bool InFirstCopy(const Parameter& parameter, RankGroups& groups) {
  return groups.replicas(parameter.spec.of_expert).rank() == 0;
}

Tensor Flat(const Tensor& tensor) { return tensor.Reshape({tensor.elements()}); }

}  // namespace

std::vector<TensorPiece> WeightPieces(const ParameterTable& parameters, RankGroups& groups) {
  std::vector<TensorPiece> pieces;
  for (const Parameter& parameter : parameters.all()) {
    if (!GivesAway(parameter, groups) || !InFirstCopy(parameter, groups)) continue;
    const ParameterSpec& spec = parameter.spec;
    pieces.push_back(
        {spec.name, spec.shape, spec.part, {0, parameter.master.elements()}, parameter.master});
  }
  return pieces;
}

std::vector<TensorPiece> GradientPieces(const ParameterTable& parameters, RankGroups& groups) {
  std::vector<TensorPiece> pieces;
  const ParameterLayout& layout = parameters.layout();
  for (size_t i = 0; i < parameters.all().size(); ++i) {
    const Parameter& parameter = parameters.all()[i];
    const ParameterSpec& spec = parameter.spec;
    const bool trained = spec.role != ParameterRole::kExpertBias;
    if (!GivesAway(parameter, groups) || !trained) continue;
    const int64_t begin = layout.offsets[i];
    const int64_t elements = parameter.gradient.elements();
    for (const ParameterBucket& bucket : layout.buckets) {
      const ElementRange owned = bucket.OwnedBy(groups.replicas(bucket.of_expert).rank());
      const ElementRange range{std::max<int64_t>(0, owned.begin - begin),
                               std::min(elements, owned.end - begin)};
      if (range.size() <= 0) continue;
      pieces.push_back({spec.name, spec.shape, spec.part, range,
                        Flat(parameter.gradient).Rows(range.begin, range.end)});
    }
  }
  return pieces;
}

std::vector<TensorPiece> OptimizerPieces(const Optimizer& optimizer, RankGroups& groups) {
  std::vector<TensorPiece> pieces;
  for (const Optimizer::StateTensor& state : optimizer.state()) {
    const Parameter& parameter = *state.parameter;
    if (!GivesAway(parameter, groups)) continue;
    if (!optimizer.shards_state() && !InFirstCopy(parameter, groups)) continue;
    const ParameterSpec& spec = parameter.spec;
    pieces.push_back({state.name, spec.shape, spec.part, state.range, state.tensor});
  }
  if (groups.first()) {
    const Tensor& step = optimizer.step();
    pieces.push_back({kStepTensor, step.shape(), {}, {0, step.elements()}, step});
  }
  return pieces;
}

std::set<std::string> ParameterNames(const ModelConfig& model) {
  std::set<std::string> names;
  for (const CountedParameter& parameter : EnumerateParameters(model)) names.insert(parameter.name);
  return names;
}

absl::Status LoadWeights(const SafetensorsFile& file, const std::set<std::string>& names,
                         const ParameterTable& parameters, Stream& stream) {
  for (const Parameter& parameter : parameters.all()) {
    const ParameterSpec& spec = parameter.spec;
    FATHOM_RETURN_IF_ERROR(LoadTensor(file, spec.name, spec.shape, spec.part,
                                      {0, parameter.master.elements()}, parameter.master, stream));
  }
  for (const NamedArray& array : file.tensors()) {
    if (names.count(array.name) == 0) {
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
    const ParameterSpec& spec = state.parameter->spec;
    FATHOM_RETURN_IF_ERROR(
        LoadTensor(file, state.name, spec.shape, spec.part, state.range, state.tensor, stream));
  }
  const Tensor& step = optimizer.step();
  return LoadTensor(file, kStepTensor, step.shape(), {}, {0, step.elements()}, step, stream);
}

}  // namespace fathom
