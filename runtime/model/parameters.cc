#include "runtime/model/parameters.h"

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "core/random.h"
#include "core/status.h"
#include "core/worker_pool.h"
#include "kernels/elementwise.h"

namespace fathom {
namespace {

std::vector<double> InitialValues(const ParameterSpec& spec, uint64_t seed, WorkerPool& workers) {
  const int64_t elements = spec.local_shape().elements();
  std::vector<double> values(elements);
  if (spec.role == ParameterRole::kExpertBias) return values;
  const bool constant = spec.role == ParameterRole::kNorm || spec.role == ParameterRole::kScale;
  const uint64_t name_hash = HashName(spec.name);
  const int64_t threads = workers.threads();
  workers.Run(threads, [&](int64_t thread) {
    const ElementRange share{elements * thread / threads, elements * (thread + 1) / threads};
    const auto fill = [&](int64_t whole, int64_t local, int64_t count) {
      for (int64_t i = 0; i < count; ++i) {
        values[share.begin + local + i] =
            constant ? 1.0 : spec.deviation * NormalAt(seed, name_hash, whole + i);
      }
    };
    VisitRuns(spec.shape, spec.part, share, fill);
  });
  return values;
}

UnitRole RoleOf(const Parameter& parameter) {
  if (parameter.spec.role == ParameterRole::kMatrix) return UnitRole::kMatrices;
  if (parameter.spec.role == ParameterRole::kExpertBias) return UnitRole::kCounts;
  return parameter.decayed() ? UnitRole::kTable : UnitRole::kVectors;
}

template <class To, class From>
void Convert(const From* from, To* to, int64_t elements) {
  for (int64_t i = 0; i < elements; ++i) to[i] = static_cast<To>(from[i]);
}

}  // namespace

const Parameter* ParameterTable::Add(ParameterSpec spec) {
  parameters_.push_back({.spec = std::move(spec), .weight = {}, .master = {}, .gradient = {}});
  return &parameters_.back();
}

const FusedMatrix* ParameterTable::AddFused(std::vector<ParameterSpec> specs) {
  groups_.push_back({.first = parameters_.size(), .count = specs.size(), .fused = {}});
  for (ParameterSpec& spec : specs) {
    FATHOM_CHECK(spec.shape.rank() == 2 && spec.shape[1] == specs[0].shape[1]) << spec.name;
    Add(std::move(spec));
  }
  return &groups_.back().fused;
}

ParameterLayout ParameterTable::MakeLayout(const ParameterLayoutOptions& options) const {
  std::vector<LayoutUnit> units;
  size_t group = 0;
  for (size_t i = 0; i < parameters_.size();) {
    const bool fused = group < groups_.size() && groups_[group].first == i;
    const size_t end = fused ? i + groups_[group++].count : i + 1;
    const Parameter& first = parameters_[i];
    LayoutUnit unit{.role = RoleOf(first),
                    .of_expert = first.spec.of_expert,
                    .first_parameter = i,
                    .matrices = {}};
    for (; i < end; ++i) {
      const ParameterSpec& spec = parameters_[i].spec;
      unit.elements.push_back(spec.local_shape().elements());
      if (unit.role == UnitRole::kMatrices) unit.matrices.push_back(spec.shape);
    }
    units.push_back(std::move(unit));
  }
  return MakeParameterLayout(units, options);
}

absl::Status ParameterTable::Allocate(Device& device, DType dtype, bool with_gradients,
                                      const ParameterLayoutOptions& options) {
  layout_ = MakeLayout(options);
  const std::vector<int64_t>& offsets = layout_.offsets;
  const int64_t total = layout_.elements;
  const DType stat = StatisticsDType(dtype);
  const bool rounded = dtype != stat;
  FATHOM_ASSIGN_OR_RETURN(masters_, Buffer::Allocate(device, total * SizeOf(stat)));
  all_masters_ = masters_.View(0, stat, {total});
  if (rounded) {
    FATHOM_ASSIGN_OR_RETURN(weights_, Buffer::Allocate(device, total * SizeOf(dtype)));
    all_weights_ = weights_.View(0, dtype, {total});
  }
  if (with_gradients) {
    FATHOM_ASSIGN_OR_RETURN(gradients_, Buffer::Allocate(device, total * SizeOf(stat)));
    all_gradients_ = gradients_.View(0, stat, {total});
  }
  const auto weight_view = [&](size_t i, Shape shape) {
    return rounded && parameters_[i].decayed()
               ? weights_.View(offsets[i] * SizeOf(dtype), dtype, shape)
               : masters_.View(offsets[i] * SizeOf(stat), stat, shape);
  };
  const auto gradient_view = [&](size_t i, Shape shape) {
    return with_gradients ? gradients_.View(offsets[i] * SizeOf(stat), stat, shape) : Tensor();
  };
  for (size_t i = 0; i < parameters_.size(); ++i) {
    Parameter& parameter = parameters_[i];
    const Shape shape = parameter.spec.local_shape();
    parameter.weight = weight_view(i, shape);
    parameter.master = masters_.View(offsets[i] * SizeOf(stat), stat, shape);
    parameter.gradient = gradient_view(i, shape);
  }
  for (Group& group : groups_) {
    const int64_t columns = parameters_[group.first].weight.dim(1);
    int64_t rows = 0;
    for (size_t i = 0; i < group.count; ++i) rows += parameters_[group.first + i].weight.dim(0);
    const Shape shape{rows, columns};
    group.fused = {weight_view(group.first, shape), gradient_view(group.first, shape)};
  }
  return absl::OkStatus();
}

void ParameterTable::RoundWeights(Stream& stream) const {
  if (!all_weights_.absent()) Launch(stream, Copy{.x = all_masters_, .y = all_weights_});
}

const Parameter* ParameterTable::Find(const std::string& name) const {
  for (const Parameter& parameter : parameters_) {
    if (parameter.spec.name == name) return &parameter;
  }
  return nullptr;
}

int64_t ParameterTable::elements() const {
  int64_t total = 0;
  for (const Parameter& parameter : parameters_) total += parameter.spec.shape.elements();
  return total;
}

absl::Status InitializeParameters(const ParameterTable& table, uint64_t seed, Stream& stream) {
  WorkerPool workers(static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 1u, 64u)));
  for (const Parameter& parameter : table.all()) {
    const std::vector<double> values = InitialValues(parameter.spec, seed, workers);
    std::vector<char> rounded(parameter.master.bytes());
    ConvertElements(values.data(), DType::kFloat64, rounded.data(), parameter.master.dtype(),
                    parameter.master.elements());
    stream.CopyToDevice(rounded.data(), parameter.master);
    FATHOM_RETURN_IF_ERROR(stream.Synchronize());
  }
  table.RoundWeights(stream);
  return absl::OkStatus();
}

void ConvertElements(const void* from, DType from_dtype, void* to, DType to_dtype,
                     int64_t elements) {
  if (elements == 0) return;
  if (from_dtype == to_dtype) {
    std::memcpy(to, from, elements * SizeOf(to_dtype));
  } else if (from_dtype == DType::kFloat64 && to_dtype == DType::kFloat32) {
    Convert(static_cast<const double*>(from), static_cast<float*>(to), elements);
  } else if (from_dtype == DType::kFloat32 && to_dtype == DType::kFloat64) {
    Convert(static_cast<const float*>(from), static_cast<double*>(to), elements);
  } else if (from_dtype == DType::kBFloat16 && to_dtype == DType::kFloat32) {
    Convert(static_cast<const BFloat16*>(from), static_cast<float*>(to), elements);
  } else if (from_dtype == DType::kBFloat16 && to_dtype == DType::kFloat64) {
    Convert(static_cast<const BFloat16*>(from), static_cast<double*>(to), elements);
  } else {
    FATHOM_CHECK(false) << "no conversion from " << Name(from_dtype) << " to " << Name(to_dtype);
  }
}

}  // namespace fathom
