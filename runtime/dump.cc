#include "runtime/dump.h"

#include <algorithm>
#include <utility>

#include "core/status.h"
#include "runtime/checkpoint/safetensors.h"
#include "runtime/run_state.h"

namespace fathom {
namespace {

// As other programs mark labels that do not count.
constexpr int64_t kNotCounted = -100;

constexpr const char* kFiles[] = {
    "tokens.safetensors",           "weights_before.safetensors", "gradients.safetensors",
    "weights_after.safetensors",    "selection.safetensors",      "step.json",
    "optimizer_before.safetensors",
};

NamedArray IntegerMatrix(std::string name, const std::vector<int64_t>& values, int64_t rows,
                         int64_t columns) {
  return {.name = std::move(name),
          .dtype = DType::kInt64,
          .shape = {rows, columns},
          .data = values.data()};
}

}  // namespace

StepDump::StepDump(FileSystem& files, std::string directory, const ModelConfig& model)
    : files_(files), directory_(std::move(directory)), temporary_(directory_ + ".tmp") {
  for (size_t layer = 0; layer < model.plan.layers.size(); ++layer) {
    if (model.plan.layers[layer].spec.kind != LayerKind::kSparse) continue;
    selections_.push_back(
        {.layer = static_cast<int64_t>(layer), .tokens_per_sequence = 0, .rows = {}});
  }
}

absl::Status StepDump::CheckDirectory(FileSystem& files, const std::string& directory) {
  if (!files.Exists(directory)) return absl::OkStatus();
  if (!files.IsDirectory(directory)) {
    return absl::AlreadyExistsError(
        absl::StrCat("debug.dump_dir ", directory, " is a file, but it must be a directory"));
  }
  FATHOM_ASSIGN_OR_RETURN(const std::vector<std::string> names, files.List(directory));
  for (const std::string& name : names) {
    if (std::find(std::begin(kFiles), std::end(kFiles), name) != std::end(kFiles)) continue;
    return absl::AlreadyExistsError(absl::StrCat("debug.dump_dir ", directory, " holds ", name,
                                                 ", but it must be new, empty or a dump"));
  }
  return absl::OkStatus();
}

absl::Status StepDump::Begin(const ParameterTable& parameters, const Optimizer& optimizer,
                             Stream& stream) {
  FATHOM_RETURN_IF_ERROR(files_.RemoveAll(temporary_));
  FATHOM_RETURN_IF_ERROR(files_.CreateDirectories(temporary_));
  FATHOM_RETURN_IF_ERROR(WriteWeights("weights_before.safetensors", parameters, stream));
  HostTensors state;
  for (const Optimizer::StateTensor& tensor : optimizer.state()) {
    FATHOM_RETURN_IF_ERROR(state.Add(tensor.name, tensor.tensor, stream));
  }
  return WriteTensors("optimizer_before.safetensors", state);
}

void StepDump::AddMicroBatch(const HostBatch& host, const Pass& pass) {
  sequences_ += host.sequences;
  length_ = host.length;
  input_ids_.insert(input_ids_.end(), host.tokens.begin(), host.tokens.end());
  for (const int32_t label : host.labels) labels_.push_back(label < 0 ? kNotCounted : label);
  packed_ = packed_ || static_cast<int64_t>(host.segments.size()) > host.sequences + 1;
  for (size_t s = 0, document = 0; s + 1 < host.segments.size(); ++s, ++document) {
    if (host.segments[s] % host.length == 0) document = 0;
    document_ids_.insert(document_ids_.end(), host.segments[s + 1] - host.segments[s], document);
  }
  FATHOM_CHECK_EQ(pass.selections.size(), selections_.size());
  for (size_t i = 0; i < selections_.size(); ++i) {
    const Tensor& index = pass.selections[i];
    selections_[i].tokens_per_sequence = index.elements() / host.sequences;
    selections_[i].rows.emplace_back(index.elements());
    pass.stream.CopyToHost(index, selections_[i].rows.back().data());
  }
}

absl::Status StepDump::AddGradients(const ParameterTable& parameters, Stream& stream) {
  HostTensors gradients;
  for (const Parameter& parameter : parameters.all()) {
    FATHOM_RETURN_IF_ERROR(gradients.Add(parameter.spec.name, parameter.gradient, stream));
  }
  return WriteTensors("gradients.safetensors", gradients);
}

absl::Status StepDump::Finish(const ParameterTable& parameters, Stream& stream,
                              const std::string& record) {
  FATHOM_RETURN_IF_ERROR(WriteWeights("weights_after.safetensors", parameters, stream));
  FATHOM_RETURN_IF_ERROR(WriteTokens());
  FATHOM_RETURN_IF_ERROR(WriteSelection());
  FATHOM_RETURN_IF_ERROR(
      WriteFileAtomically(files_, JoinPath(temporary_, "step.json"), record + "\n"));
  FATHOM_RETURN_IF_ERROR(files_.SyncDirectory(temporary_));
  FATHOM_RETURN_IF_ERROR(files_.RemoveAll(directory_));
  return files_.Rename(temporary_, directory_);
}

absl::Status StepDump::WriteTensors(const std::string& name, const HostTensors& tensors) {
  return WriteSafetensorsFile(files_, JoinPath(temporary_, name), tensors.arrays(),
                              {{"format", "pt"}});
}

absl::Status StepDump::WriteWeights(const std::string& name, const ParameterTable& parameters,
                                    Stream& stream) {
  HostTensors weights;
  FATHOM_RETURN_IF_ERROR(CopyWeights(parameters, stream, &weights));
  return WriteTensors(name, weights);
}

absl::Status StepDump::WriteTokens() {
  std::vector<NamedArray> arrays = {IntegerMatrix("input_ids", input_ids_, sequences_, length_),
                                    IntegerMatrix("labels", labels_, sequences_, length_)};
  if (packed_) {
    arrays.push_back(IntegerMatrix("document_ids", document_ids_, sequences_, length_));
  }
  return WriteSafetensorsFile(files_, JoinPath(temporary_, "tokens.safetensors"), arrays,
                              {{"format", "pt"}});
}

absl::Status StepDump::WriteSelection() {
  std::vector<std::vector<int64_t>> storage(selections_.size());
  std::vector<NamedArray> arrays;
  for (size_t i = 0; i < selections_.size(); ++i) {
    const LayerSelection& selection = selections_[i];
    for (const std::vector<int32_t>& rows : selection.rows) {
      for (const int32_t row : rows) storage[i].push_back(row % length_);
    }
    arrays.push_back(
        IntegerMatrix(absl::StrCat("model.layers.", selection.layer, ".depth_selection"),
                      storage[i], sequences_, selection.tokens_per_sequence));
  }
  return WriteSafetensorsFile(files_, JoinPath(temporary_, "selection.safetensors"), arrays,
                              {{"format", "pt"}});
}

}  // namespace fathom
