#include "runtime/selection_replay.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "core/status.h"
#include "runtime/checkpoint/array_values.h"
#include "runtime/checkpoint/safetensors.h"
#include "runtime/model/parameters.h"

namespace fathom {
namespace {

std::string TensorName(int64_t layer) {
  return absl::StrCat("model.layers.", layer, ".depth_selection");
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
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    if (layers[layer].spec.kind != LayerKind::kSparse) continue;
    FATHOM_RETURN_IF_ERROR(
        replay->ReadLayer(*file, layer, replay->length_ / layers[layer].spec.sparsity));
    names.insert(TensorName(layer));
  }
  for (const NamedArray& array : file->tensors()) {
    if (names.count(array.name) > 0) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        file_path, " has ", array.name, ", which the job's model has no sparse layer for"));
  }
  return replay;
}

absl::Status SelectionReplay::ReadLayer(const SafetensorsFile& file, int64_t layer, int64_t k) {
  const std::string name = TensorName(layer);
  const NamedArray* array = file.Find(name);
  if (array == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        file.path(), " has no tensor ", name, ", which the job's sparse layer ", layer, " needs"));
  }
  const Shape shape{global_batch_, k};
  const bool integers = array->dtype == DType::kInt64 || array->dtype == DType::kInt32;
  if (!integers || !(array->shape == shape)) {
    return absl::InvalidArgumentError(
        absl::StrCat(file.path(), ": ", name, " is ", std::string(Name(array->dtype)), " ",
                     array->shape.ToString(), ", but the job needs int64 ", shape.ToString(),
                     " (train.global_batch sequences, floor(L/K) tokens of each)"));
  }
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

ReplayedSelection SelectionReplay::Upload(int64_t micro_batch, Stream& stream, Arena& arena) const {
  ReplayedSelection selection(layers_);
  for (const Layer& layer : sparse_) {
    const int64_t rows = micro_batch_ * layer.k;
    selection[layer.layer] = arena.New(DType::kInt32, {rows});
    stream.CopyToDevice(layer.rows.data() + micro_batch * rows, selection[layer.layer]);
  }
  return selection;
}

absl::Status SelectionReplay::CountFlips(const Pass& pass, int64_t micro_batch,
                                         Flips* flips) const {
  const int64_t n = micro_batch_ * length_;
  std::vector<double> logits(n);
  for (const LayerSelection& selection : pass.selections) {
    const Tensor& z = selection.adjusted_logits;
    std::vector<char> raw(z.bytes());
    pass.stream.CopyToHost(z, raw.data());
    FATHOM_RETURN_IF_ERROR(pass.stream.Synchronize());
    ConvertElements(raw.data(), z.dtype(), logits.data(), DType::kFloat64, n);
    // A comparison needs an order.
    for (double& logit : logits) logit = std::isnan(logit) ? -HUGE_VAL : logit;
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
