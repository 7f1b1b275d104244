#include "runtime/dump.h"

#include <algorithm>
#include <utility>

#include "core/status.h"
#include "runtime/checkpoint/safetensors.h"
#include "runtime/model/expert_names.h"
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

}  // namespace

StepDump::StepDump(FileSystem& files, std::string directory, const BatchShare& share,
                   int64_t length, RankGroups& groups, Stream& stream)
    : files_(files),
      directory_(std::move(directory)),
      temporary_(directory_ + ".tmp"),
      share_(share),
      length_(length),
      groups_(groups),
      stream_(stream) {}

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

absl::Status StepDump::Begin(const ParameterTable& parameters, const Optimizer& optimizer) {
  if (groups_.first()) {
    FATHOM_RETURN_IF_ERROR(files_.RemoveAll(temporary_));
    FATHOM_RETURN_IF_ERROR(files_.CreateDirectories(temporary_));
  }
  FATHOM_RETURN_IF_ERROR(Write("weights_before.safetensors", WeightPieces(parameters, groups_)));
  std::vector<TensorPiece> moments = OptimizerPieces(optimizer, groups_);
  std::erase_if(moments, [](const TensorPiece& piece) { return piece.name == kStepTensor; });
  return Write("optimizer_before.safetensors", moments);
}

StepDump::SequenceRows& StepDump::RowsOf(std::map<std::string, SequenceRows>& tensors,
                                         const std::string& name, int64_t width) {
  SequenceRows& rows = tensors[name];
  rows.width = width;
  rows.values.resize(share_.micro_batches() * share_.micro_batch * width);
  return rows;
}

void StepDump::AddTokens(int64_t micro_batch, const HostBatch& host) {
  const int64_t first = micro_batch * share_.micro_batch * length_;
  int64_t* ids = RowsOf(tokens_, "input_ids", length_).values.data() + first;
  int64_t* labels = RowsOf(tokens_, "labels", length_).values.data() + first;
  int64_t* documents = RowsOf(tokens_, "document_ids", length_).values.data() + first;
  for (size_t i = 0; i < host.tokens.size(); ++i) {
    ids[i] = host.tokens[i];
    labels[i] = host.labels[i] < 0 ? kNotCounted : host.labels[i];
  }
  packed_ = packed_ || static_cast<int64_t>(host.segments.size()) > host.sequences + 1;
  for (size_t s = 0, document = 0; s + 1 < host.segments.size(); ++s, ++document) {
    if (host.segments[s] % host.length == 0) document = 0;
    std::fill(documents + host.segments[s], documents + host.segments[s + 1], document);
  }
}

void StepDump::AddSelections(int64_t micro_batch, const Pass& pass) {
  for (const LayerSelection& selection : pass.selections) {
    const Tensor& index = selection.index;
    copies_.push_back({absl::StrCat("model.layers.", selection.layer, ".depth_selection"),
                       micro_batch, index.elements() / pass.sequences});
    copied_.emplace_back(index.elements());
    pass.stream.CopyToHost(index, copied_.back().data());
  }
  AddExperts(micro_batch, pass);
}

void StepDump::AddExperts(int64_t micro_batch, const Pass& pass) {
  for (const LayerExperts& layer : pass.experts) {
    const int64_t routed = layer.experts.dim(1);
    const int64_t layer_rows = layer.layer_rows;
    // Where each tensor rank has seen all rows, the first one gives them.
    if (layer.rows.size() == layer_rows && groups_.tensor().rank() != 0) continue;
    ExpertRows& rows = experts_.emplace_back();
    rows.name = ExpertSelectionName(layer.layer);
    rows.whole = {share_.global_batch, layer_rows / pass.sequences, routed};
    rows.first = (share_.MicroBatchInStep(micro_batch) * layer_rows + layer.rows.begin) * routed;
    rows.copied.resize(layer.experts.elements());
    if (!rows.copied.empty()) pass.stream.CopyToHost(layer.experts, rows.copied.data());
  }
}

std::vector<TensorPiece> StepDump::ExpertPieces() {
  std::vector<TensorPiece> pieces;
  for (ExpertRows& rows : experts_) {
    if (rows.copied.empty()) continue;
    rows.values.assign(rows.copied.begin(), rows.copied.end());
    const int64_t elements = rows.values.size();
    pieces.push_back({rows.name,
                      rows.whole,
                      {},
                      {rows.first, rows.first + elements},
                      Tensor(rows.values.data(), DType::kInt64, {elements})});
  }
  return pieces;
}

absl::Status StepDump::AddGradients(const ParameterTable& parameters) {
  return Write("gradients.safetensors", GradientPieces(parameters, groups_));
}

absl::Status StepDump::Finish(const ParameterTable& parameters, const std::string& record) {
  FATHOM_RETURN_IF_ERROR(Write("weights_after.safetensors", WeightPieces(parameters, groups_)));
  FATHOM_ASSIGN_OR_RETURN(const bool packed, AnyPacked());
  if (!packed) tokens_.erase("document_ids");
  if (groups_.coordinates().pipeline != 0) tokens_.clear();
  FATHOM_RETURN_IF_ERROR(Write("tokens.safetensors", Pieces(tokens_)));

  FATHOM_RETURN_IF_ERROR(stream_.Synchronize());
  for (size_t i = 0; i < copies_.size(); ++i) {
    const Copied& copy = copies_[i];
    const int64_t k = copy.tokens_per_sequence;
    int64_t* rows =
        RowsOf(selections_, copy.name, k).values.data() + copy.micro_batch * share_.micro_batch * k;
    for (size_t j = 0; j < copied_[i].size(); ++j) rows[j] = copied_[i][j] % length_;
  }
  std::vector<TensorPiece> selections = Pieces(selections_);
  std::vector<TensorPiece> experts = ExpertPieces();
  selections.insert(selections.end(), experts.begin(), experts.end());
  FATHOM_RETURN_IF_ERROR(Write("selection.safetensors", selections));
  if (!groups_.first()) return absl::OkStatus();
  FATHOM_RETURN_IF_ERROR(
      WriteFileAtomically(files_, JoinPath(temporary_, "step.json"), record + "\n"));
  FATHOM_RETURN_IF_ERROR(files_.SyncDirectory(temporary_));
  FATHOM_RETURN_IF_ERROR(files_.RemoveAll(directory_));
  return files_.Rename(temporary_, directory_);
}

absl::StatusOr<bool> StepDump::AnyPacked() {
  int32_t packed = packed_;
  FATHOM_RETURN_IF_ERROR(
      groups_.world()
          .AllReduce(Tensor(&packed, DType::kInt32, {1}), ReduceOp::kMax, stream_)
          .Wait(stream_));
  return packed != 0;
}

absl::Status StepDump::Write(const std::string& name, const std::vector<TensorPiece>& pieces) {
  FATHOM_ASSIGN_OR_RETURN(const std::unique_ptr<TensorGathering> gathering,
                          TensorGathering::Create(pieces, groups_, stream_));
  if (!groups_.first()) return gathering->Send();
  return WriteSafetensorsFile(files_, JoinPath(temporary_, name), gathering->arrays(),
                              {{"format", "pt"}}, [&](size_t i) { return gathering->Load(i); });
}

std::vector<TensorPiece> StepDump::Pieces(std::map<std::string, SequenceRows>& tensors) {
  std::vector<TensorPiece> pieces;
  const int64_t sequences = share_.micro_batches() * share_.micro_batch;
  const int64_t first = share_.data_rank * sequences;
  for (auto& [tensor, rows] : tensors) {
    if (groups_.tensor().rank() != 0) break;
    const int64_t elements = rows.values.size();
    pieces.push_back({tensor,
                      {share_.global_batch, rows.width},
                      {.dim = 0, .begin = first, .end = first + sequences},
                      {0, elements},
                      Tensor(rows.values.data(), DType::kInt64, {elements})});
  }
  return pieces;
}

}  // namespace fathom
