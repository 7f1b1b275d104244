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

// Elements; parameters start at 256-byte borders in float32.
constexpr int64_t kAlignment = 64;

std::vector<double> InitialValues(const ParameterSpec& spec, uint64_t seed, WorkerPool& workers) {
  const int64_t elements = spec.shape.elements();
  std::vector<double> values(elements);
  const bool constant = spec.role == ParameterRole::kNorm || spec.role == ParameterRole::kScale;
  const uint64_t name_hash = HashName(spec.name);
  const int64_t threads = workers.threads();
  workers.Run(threads, [&](int64_t thread) {
    for (int64_t i = elements * thread / threads; i < elements * (thread + 1) / threads; ++i) {
      values[i] = constant ? 1.0 : spec.deviation * NormalAt(seed, name_hash, i);
    }
  });
  return values;
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

std::vector<int64_t> ParameterTable::Layout() const {
  std::vector<int64_t> offsets;
  int64_t offset = 0;
  size_t group = 0;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    while (group < groups_.size() && groups_[group].first + groups_[group].count <= i) ++group;
    const bool continues_group = group < groups_.size() && groups_[group].first < i;
    if (!continues_group) offset = (offset + kAlignment - 1) / kAlignment * kAlignment;
    offsets.push_back(offset);
    offset += parameters_[i].spec.shape.elements();
  }
  offsets.push_back((offset + kAlignment - 1) / kAlignment * kAlignment);
  return offsets;
}

absl::Status ParameterTable::Allocate(Device& device, DType dtype, bool with_gradients) {
  const std::vector<int64_t> offsets = Layout();
  const int64_t total = offsets.back();
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
    parameter.weight = weight_view(i, parameter.spec.shape);
    parameter.master = masters_.View(offsets[i] * SizeOf(stat), stat, parameter.spec.shape);
    parameter.gradient = gradient_view(i, parameter.spec.shape);
  }
  for (Group& group : groups_) {
    Shape shape{0, parameters_[group.first].spec.shape[1]};
    int64_t rows = 0;
    for (size_t i = 0; i < group.count; ++i) rows += parameters_[group.first + i].spec.shape[0];
    shape = {rows, shape[1]};
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
