#include "runtime/huggingface/model_tensors.h"

#include <map>
#include <utility>

#include "core/accounting.h"
#include "core/status.h"

namespace fathom {
namespace {

absl::Status CheckArray(const NamedArray& array, const Shape& shape, const std::string& from) {
  if (!(array.shape == shape)) {
    return absl::InvalidArgumentError(absl::StrCat(from, ": ", array.name, " is ",
                                                   array.shape.ToString(), ", the model has ",
                                                   shape.ToString()));
  }
  if (array.dtype == DType::kInt32 || array.dtype == DType::kInt64) {
    return absl::InvalidArgumentError(absl::StrCat(from, ": ", array.name, " is ",
                                                   std::string(Name(array.dtype)),
                                                   ", but weights are floating-point numbers"));
  }
  return absl::OkStatus();
}

Shape ToShape(const std::vector<int64_t>& dims) {
  Shape shape;
  for (const int64_t dim : dims) shape.Append(dim);
  return shape;
}

}  // namespace

absl::StatusOr<const void*> TensorList::Load(size_t i) const {
  if (load) return load(i);
  return arrays[i].data;
}

absl::StatusOr<TensorList> SelectModelTensors(const ModelConfig& model, const TensorList& list,
                                              const std::string& from) {
  std::map<std::string, size_t> places;
  for (size_t i = 0; i < list.arrays.size(); ++i) {
    if (list.arrays[i].shape.elements() > 0) places[list.arrays[i].name] = i;
  }
  TensorList selected;
  std::vector<size_t> sources;
  for (const CountedParameter& parameter : EnumerateParameters(model)) {
    const auto found = places.find(parameter.name);
    if (found == places.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat(from, " has no tensor ", parameter.name, ", which the model needs"));
    }
    const NamedArray& array = list.arrays[found->second];
    FATHOM_RETURN_IF_ERROR(CheckArray(array, ToShape(parameter.dims), from));
    selected.arrays.push_back(array);
    sources.push_back(found->second);
    places.erase(found);
  }
  if (!places.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(from, " has a tensor ", places.begin()->first, ", which the model has not"));
  }
  selected.owner = list.owner;
  if (list.load) {
    selected.load = [load = list.load, sources = std::move(sources)](size_t i) {
      return load(sources[i]);
    };
  }
  return selected;
}

}  // namespace fathom
