#include "runtime/run_state.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "core/accounting.h"
#include "core/parallel_for.h"
#include "core/status.h"
#include "runtime/checkpoint/array_values.h"

namespace fathom {
namespace {

// Whether the shapes name the same elements: a scalar may be written as [] or [1].
bool SameShape(const Shape& a, const Shape& b) {
  return a == b || (a.rank() <= 1 && b.rank() <= 1 && a.elements() == 1 && b.elements() == 1);
}

absl::Status NotFinite(const TensorSource& source, const std::string& name, int64_t element,
                       double value) {
  return absl::InvalidArgumentError(absl::StrCat(source.path(), ": element ", element, " of ", name,
                                                 " is ", value,
                                                 "; weights must be finite numbers"));
}

// `elements` when all are finite.
template <class T, class Wide>
int64_t FirstNotFinite(const void* data, int64_t elements) {
  const T* values = static_cast<const T*>(data);
  for (int64_t i = 0; i < elements; ++i) {
    if (!std::isfinite(static_cast<Wide>(values[i]))) return i;
  }
  return elements;
}

// InvalidArgument for the first element that is not finite, by its place in the tensor.
absl::Status CheckFinite(const TensorSource& source, const NamedArray& array,
                         const TensorSlice& slice, const void* data) {
  const int64_t elements = slice.elements();
  int64_t found = elements;
  if (array.dtype == DType::kFloat32) found = FirstNotFinite<float, float>(data, elements);
  if (array.dtype == DType::kFloat64) found = FirstNotFinite<double, double>(data, elements);
  if (array.dtype == DType::kBFloat16) found = FirstNotFinite<BFloat16, float>(data, elements);
  if (found == elements) return absl::OkStatus();
  NamedArray read = array;
  read.shape = {elements};
  read.data = data;
  double value;
  ReadElements(read, found, 1, &value);
  for (const SliceRun& run : RunsOf(array.shape, slice)) {
    if (found < run.in_slice + run.count) {
      return NotFinite(source, array.name, run.in_tensor + found - run.in_slice, value);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<const NamedArray*> FindTensor(const TensorSource& source, const std::string& name,
                                             const Shape& shape) {
  const NamedArray* array = source.Find(name);
  if (array == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(source.path(), " has no tensor ", name, ", which the job's model needs"));
  }
  if (!SameShape(array->shape, shape)) {
    return absl::InvalidArgumentError(absl::StrCat(source.path(), ": ", name, " is ",
                                                   array->shape.ToString(),
                                                   ", the job's model has ", shape.ToString()));
  }
  if (array->dtype == DType::kInt32 || array->dtype == DType::kInt64) {
    return absl::InvalidArgumentError(absl::StrCat(source.path(), ": ", name, " is ",
                                                   std::string(Name(array->dtype)),
                                                   "; float32, float64 or bfloat16 is needed"));
  }
  return array;
}

// Fills tensors from a file, several at once and large ones in pieces.
class TensorLoader {
 public:
  TensorLoader(const TensorSource& source, Stream& stream)
      : source_(source),
        stream_(stream),
        host_(stream.device().kind() == DeviceKind::kCpu),
        workers_(LoadingThreads()) {}

  // `tensor` is a slice of the tensor `name`, whose values must be finite if `finite`.
  absl::Status Add(const std::string& name, const Shape& whole, const TensorSlice& slice,
                   bool finite, const Tensor& tensor) {
    FATHOM_ASSIGN_OR_RETURN(const NamedArray* array, FindTensor(source_, name, whole));
    const Tensor flat = tensor.Reshape({slice.elements()});
    for (int64_t begin = 0; begin < slice.elements(); begin += kPieceElements) {
      const int64_t end = std::min(begin + kPieceElements, slice.elements());
      const ElementRange range{slice.range.begin + begin, slice.range.begin + end};
      pieces_.push_back({array, {slice.part, range}, finite, flat.Rows(begin, end)});
    }
    return absl::OkStatus();
  }

  // The error is that of the piece that was added first.
  absl::Status Load() {
    return ParallelFor(workers_, static_cast<int64_t>(pieces_.size()),
                       [this](int64_t i) { return LoadPiece(pieces_[i]); });
  }

 private:
  static constexpr int64_t kPieceElements = int64_t{1} << 22;

  struct Piece {
    const NamedArray* array;
    TensorSlice slice;
    bool finite;
    Tensor tensor;  // [elements of the slice]
  };

  absl::Status LoadPiece(const Piece& piece) {
    const auto& [array, slice, finite, tensor] = piece;
    if (array->dtype == tensor.dtype() && host_) {
      // At once to where it belongs.
      FATHOM_RETURN_IF_ERROR(source_.ReadSlice(*array, slice, tensor.raw()));
      return finite ? CheckFinite(source_, *array, slice, tensor.raw()) : absl::OkStatus();
    }
    std::vector<char> data(slice.elements() * SizeOf(array->dtype));
    FATHOM_RETURN_IF_ERROR(source_.ReadSlice(*array, slice, data.data()));
    if (finite) FATHOM_RETURN_IF_ERROR(CheckFinite(source_, *array, slice, data.data()));
    if (array->dtype != tensor.dtype()) {
      std::vector<char> converted(tensor.bytes());
      ConvertElements(data.data(), array->dtype, converted.data(), tensor.dtype(),
                      slice.elements());
      data = std::move(converted);
    }
    const std::lock_guard lock(stream_mutex_);
    stream_.CopyToDevice(data.data(), tensor);
    return stream_.Synchronize();
  }

  const TensorSource& source_;
  Stream& stream_;
  std::mutex stream_mutex_;
  const bool host_;
  std::vector<Piece> pieces_;
  WorkerPool workers_;
};

// Of tensors that all ranks of a copy hold, the first one's counts.
bool GivesAway(const Parameter& parameter, RankGroups& groups) {
  return !parameter.spec.part.whole() || groups.parts(parameter.spec.of_expert).rank() == 0;
}

Tensor Flat(const Tensor& tensor) { return tensor.Reshape({tensor.elements()}); }

// The elements of a parameter that this rank owns among those that hold copies of it: one range,
// since a parameter lies in one bucket.
ElementRange OwnedRange(const ParameterTable& parameters, size_t i, RankGroups& groups) {
  const ParameterLayout& layout = parameters.layout();
  const int64_t begin = layout.offsets[i];
  const int64_t elements = parameters.all()[i].master.elements();
  const int replica = groups.replicas(parameters.all()[i].spec.of_expert).rank();
  for (const ParameterBucket& bucket : layout.buckets) {
    if (bucket.of_expert != parameters.all()[i].spec.of_expert) continue;
    const ElementRange owned = bucket.OwnedBy(replica);
    const ElementRange range{std::max<int64_t>(0, owned.begin - begin),
                             std::min(elements, owned.end - begin)};
    if (range.size() > 0) return range;
  }
  return {};
}

// What this rank gives of all parameters; `tensor_of` is what of a parameter.
template <class TensorOf>
std::vector<TensorPiece> OwnedPieces(const ParameterTable& parameters, RankGroups& groups,
                                     TensorOf tensor_of) {
  std::vector<TensorPiece> pieces;
  for (size_t i = 0; i < parameters.all().size(); ++i) {
    const Parameter& parameter = parameters.all()[i];
    if (!GivesAway(parameter, groups)) continue;
    const ElementRange range = OwnedRange(parameters, i, groups);
    const Tensor tensor = tensor_of(parameter);
    if (range.size() <= 0 || tensor.absent()) continue;
    pieces.push_back({parameter.spec.name, parameter.spec.shape, parameter.spec.part, range,
                      Flat(tensor).Rows(range.begin, range.end)});
  }
  return pieces;
}

}  // namespace

std::vector<TensorPiece> WeightPieces(const ParameterTable& parameters, RankGroups& groups) {
  return OwnedPieces(parameters, groups,
                     [](const Parameter& parameter) { return parameter.master; });
}

std::vector<TensorPiece> GradientPieces(const ParameterTable& parameters, RankGroups& groups) {
  return OwnedPieces(parameters, groups, [](const Parameter& parameter) {
    const bool trained = parameter.spec.role != ParameterRole::kExpertBias;
    return trained ? parameter.gradient : Tensor();
  });
}

std::vector<TensorPiece> OptimizerPieces(const Optimizer& optimizer, RankGroups& groups) {
  std::vector<TensorPiece> pieces;
  const ParameterTable& parameters = optimizer.parameters();
  std::map<const Parameter*, ElementRange> owned;
  for (size_t i = 0; i < parameters.all().size(); ++i) {
    owned[&parameters.all()[i]] = OwnedRange(parameters, i, groups);
  }
  for (const Optimizer::StateTensor& state : optimizer.state()) {
    if (!GivesAway(*state.parameter, groups)) continue;
    // What all keep is given by its owner.
    const ElementRange& own = owned.at(state.parameter);
    const ElementRange range{std::max(own.begin, state.range.begin),
                             std::min(own.end, state.range.end)};
    if (range.size() <= 0) continue;
    const ParameterSpec& spec = state.parameter->spec;
    pieces.push_back(
        {state.name, spec.shape, spec.part, range,
         Flat(state.tensor).Rows(range.begin - state.range.begin, range.end - state.range.begin)});
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

int LoadingThreads() {
  return static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 1u, 8u));
}

absl::Status LoadWeights(const TensorSource& source, const std::set<std::string>& names,
                         const ParameterTable& parameters, Stream& stream) {
  TensorLoader loader(source, stream);
  for (const Parameter& parameter : parameters.all()) {
    const ParameterSpec& spec = parameter.spec;
    FATHOM_RETURN_IF_ERROR(loader.Add(spec.name, spec.shape,
                                      {spec.part, {0, parameter.master.elements()}},
                                      /*finite=*/true, parameter.master));
  }
  for (const NamedArray& array : source.tensors()) {
    if (names.count(array.name) == 0) {
      return absl::InvalidArgumentError(absl::StrCat(source.path(), " has a tensor ", array.name,
                                                     ", which the job's model has not"));
    }
  }
  FATHOM_RETURN_IF_ERROR(loader.Load());
  parameters.RoundWeights(stream);
  return absl::OkStatus();
}

absl::Status LoadOptimizer(const TensorSource& source, const Optimizer& optimizer, Stream& stream) {
  TensorLoader loader(source, stream);
  for (const Optimizer::StateTensor& state : optimizer.state()) {
    const ParameterSpec& spec = state.parameter->spec;
    FATHOM_RETURN_IF_ERROR(loader.Add(state.name, spec.shape, {spec.part, state.range},
                                      /*finite=*/true, state.tensor));
  }
  // The gradient norm in it is not finite when the last step was skipped.
  const Tensor& step = optimizer.step();
  FATHOM_RETURN_IF_ERROR(loader.Add(kStepTensor, step.shape(), TensorSlice::Whole(step.shape()),
                                    /*finite=*/false, step));
  return loader.Load();
}

}  // namespace fathom
