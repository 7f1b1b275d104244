#include "runtime/selection_replay.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "core/status.h"
#include "runtime/checkpoint/array_values.h"
#include "runtime/checkpoint/safetensors.h"
#include "runtime/model/expert_names.h"
#include "runtime/model/parameters.h"

namespace fathom {
namespace {

std::string TensorName(int64_t layer) {
  return absl::StrCat("model.layers.", layer, ".depth_selection");
}

// `values` has as many elements as `tensor`. What is not a number counts as the least, since a
// comparison needs an order.
absl::Status ToHost(Stream& stream, const Tensor& tensor, std::vector<double>* values) {
  std::vector<char> raw(tensor.bytes());
  if (raw.empty()) return absl::OkStatus();
  stream.CopyToHost(tensor, raw.data());
  FATHOM_RETURN_IF_ERROR(stream.Synchronize());
  ConvertElements(raw.data(), tensor.dtype(), values->data(), DType::kFloat64, values->size());
  for (double& value : *values) value = std::isnan(value) ? -HUGE_VAL : value;
  return absl::OkStatus();
}

// The tensor of integers `name` of this shape.
absl::StatusOr<const NamedArray*> FindIntegers(const SafetensorsFile& file, const std::string& name,
                                               const Shape& shape) {
  const NamedArray* array = file.Find(name);
  if (array == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(file.path(), " has no tensor ", name, ", which the job's model needs"));
  }
  const bool integers = array->dtype == DType::kInt64 || array->dtype == DType::kInt32;
  if (!integers || !(array->shape == shape)) {
    return absl::InvalidArgumentError(
        absl::StrCat(file.path(), ": ", name, " is ", std::string(Name(array->dtype)), " ",
                     array->shape.ToString(), ", but the job needs int64 ", shape.ToString(),
                     " (train.global_batch sequences, and what the layer selects of each)"));
  }
  return array;
}

// Of one sequence: `logits` [L], `replayed` [k] rows of which `first_row` is the sequence's first.
void CountFlipsOfSequence(const double* logits, int64_t length, const int32_t* replayed, int64_t k,
                          int64_t first_row, SelectionReplay::Flips* flips) {
  std::vector<int32_t> order(length);
  std::iota(order.begin(), order.end(), 0);
  const auto before = [&](int32_t a, int32_t b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  };
  std::nth_element(order.begin(), order.begin() + (k - 1), order.end(), before);
  const int32_t last = order[k - 1];
  for (int64_t i = 0; i < k; ++i) {
    const int32_t position = static_cast<int32_t>(replayed[i] - first_row);
    if (!before(last, position)) continue;
    ++flips->tokens;
    flips->margin = std::max(flips->margin, logits[last] - logits[position]);
  }
  flips->replayed += k;
}

}  // namespace

absl::StatusOr<std::unique_ptr<SelectionReplay>> SelectionReplay::Read(FileSystem& files,
                                                                       const std::string& path,
                                                                       const Job& job) {
  const std::string file_path =
      files.IsDirectory(path) ? JoinPath(path, "selection.safetensors") : path;
  FATHOM_ASSIGN_OR_RETURN(const std::unique_ptr<SafetensorsFile> file,
                          SafetensorsFile::Open(files, file_path));
  auto replay = std::make_unique<SelectionReplay>();
  const std::vector<PlannedLayer>& layers = job.model.plan.layers;
  replay->layers_ = layers.size();
  replay->micro_batch_ = job.train.micro_batch;
  replay->global_batch_ = job.train.global_batch;
  replay->length_ = job.train.sequence_length;
  std::set<std::string> names;
  replay->experts_ = job.model.experts;
  replay->routed_ = job.model.routed;
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    const LayerSpec& spec = layers[layer].spec;
    const int64_t rows = replay->length_ / spec.sparsity;
    if (spec.kind == LayerKind::kSparse) {
      FATHOM_RETURN_IF_ERROR(replay->ReadLayer(*file, layer, rows));
      names.insert(TensorName(layer));
    }
    if (spec.experts) {
      FATHOM_RETURN_IF_ERROR(replay->ReadExperts(*file, layer, rows));
      names.insert(ExpertSelectionName(layer));
    }
  }
  for (const NamedArray& array : file->tensors()) {
    if (names.count(array.name) > 0) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        file_path, " has ", array.name, ", which the job's model has no such layer for"));
  }
  return replay;
}

absl::Status SelectionReplay::ReadLayer(const SafetensorsFile& file, int64_t layer, int64_t k) {
  const std::string name = TensorName(layer);
  const Shape shape{global_batch_, k};
  FATHOM_ASSIGN_OR_RETURN(const NamedArray* array, FindIntegers(file, name, shape));
  std::vector<double> positions(shape.elements());
  ReadElements(*array, 0, shape.elements(), positions.data());
  Layer& selection = sparse_.emplace_back(Layer{.layer = layer, .k = k, .rows = {}});
  for (int64_t i = 0; i < shape.elements(); ++i) {
    const double least = i % k == 0 ? 0 : positions[i - 1] + 1;
    if (!(positions[i] >= least && positions[i] < length_)) {
      return absl::InvalidArgumentError(absl::StrCat(
          file.path(), ": ", name, " selects position ", positions[i], " in sequence ", i / k,
          ", but the positions of a sequence must ascend from 0 to ", length_ - 1));
    }
    const int64_t sequence = i / k % micro_batch_;
    selection.rows.push_back(static_cast<int32_t>(sequence * length_ + positions[i]));
  }
  return absl::OkStatus();
}

absl::Status SelectionReplay::ReadExperts(const SafetensorsFile& file, int64_t layer,
                                          int64_t rows) {
  const std::string name = ExpertSelectionName(layer);
  const Shape shape{global_batch_, rows, routed_};
  FATHOM_ASSIGN_OR_RETURN(const NamedArray* array, FindIntegers(file, name, shape));
  std::vector<double> experts(shape.elements());
  ReadElements(*array, 0, shape.elements(), experts.data());
  for (int64_t i = 0; i < shape.elements(); ++i) {
    const double least = i % routed_ == 0 ? 0 : experts[i - 1] + 1;
    if (!(experts[i] >= least && experts[i] < experts_)) {
      return absl::InvalidArgumentError(
          absl::StrCat(file.path(), ": ", name, " selects expert ", experts[i], " for token ",
                       i / routed_ % rows, " of sequence ", i / (routed_ * rows),
                       ", but the experts of a token must ascend from 0 to ", experts_ - 1));
    }
  }
  with_experts_.push_back(
      {.layer = layer, .rows = rows, .experts = {experts.begin(), experts.end()}});
  return absl::OkStatus();
}

ReplayedSelection SelectionReplay::UploadExperts(int64_t micro_batch, Stream& stream,
                                                 Arena& arena) const {
  if (with_experts_.empty()) return {};
  ReplayedSelection selection(layers_);
  for (const ExpertLayer& layer : with_experts_) {
    const int64_t rows = micro_batch_ * layer.rows;
    selection[layer.layer] = arena.New(DType::kInt32, {rows, routed_});
    stream.CopyToDevice(layer.experts.data() + micro_batch * rows * routed_,
                        selection[layer.layer]);
  }
  return selection;
}

ReplayedSelection SelectionReplay::Upload(int64_t micro_batch, Stream& stream, Arena& arena) const {
  ReplayedSelection selection(layers_);
  for (const Layer& layer : sparse_) {
    const int64_t rows = micro_batch_ * layer.k;
    selection[layer.layer] = arena.New(DType::kInt32, {rows});
    stream.CopyToDevice(layer.rows.data() + micro_batch * rows, selection[layer.layer]);
  }
  return selection;
}

absl::Status SelectionReplay::CountExpertFlips(const Pass& pass, Flips* flips) const {
  for (const LayerExperts& layer : pass.experts) {
    const int64_t rows = layer.rows.size();
    std::vector<double> values(rows * experts_), bias(experts_);
    std::vector<int32_t> chosen(rows * routed_);
    FATHOM_RETURN_IF_ERROR(ToHost(pass.stream, layer.scores, &values));
    FATHOM_RETURN_IF_ERROR(ToHost(pass.stream, layer.bias, &bias));
    if (rows > 0) pass.stream.CopyToHost(layer.experts, chosen.data());
    FATHOM_RETURN_IF_ERROR(pass.stream.Synchronize());
    for (int64_t row = 0; row < rows; ++row) {
      double* of_row = values.data() + row * experts_;
      for (int64_t e = 0; e < experts_; ++e) of_row[e] += bias[e];
      CountFlipsOfSequence(of_row, experts_, chosen.data() + row * routed_, routed_,
                           /*first_row=*/0, flips);
    }
  }
  return absl::OkStatus();
}

absl::Status SelectionReplay::CountFlips(const Pass& pass, int64_t micro_batch,
                                         Flips* flips) const {
  const int64_t n = micro_batch_ * length_;
  std::vector<double> logits(n);
  for (const LayerSelection& selection : pass.selections) {
    const Tensor& z = selection.adjusted_logits;
    FATHOM_RETURN_IF_ERROR(ToHost(pass.stream, z, &logits));
    const auto found = std::find_if(sparse_.begin(), sparse_.end(), [&](const Layer& candidate) {
      return candidate.layer == selection.layer;
    });
    FATHOM_CHECK(found != sparse_.end());
    const Layer& layer = *found;
    const int32_t* rows = layer.rows.data() + micro_batch * micro_batch_ * layer.k;
    for (int64_t s = 0; s < micro_batch_; ++s) {
      CountFlipsOfSequence(logits.data() + s * length_, length_, rows + s * layer.k, layer.k,
                           s * length_, flips);
    }
  }
  return absl::OkStatus();
}

}  // namespace fathom
