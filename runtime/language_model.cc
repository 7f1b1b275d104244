#include "runtime/language_model.h"

#include "core/accounting.h"
#include "core/status.h"

namespace fathom {

absl::StatusOr<std::vector<LayerRange>> CutLayers(const ModelConfig& config, int64_t length,
                                                  int parts) {
  const LayerFlops flops = CountLayerFlops(config, length);
  return PartitionLayers({.layers = flops.layers, .last_extra = flops.head}, parts);
}

LanguageModel::LanguageModel(const ModelConfig& config, const LanguageModelOptions& options,
                             RankGroups& groups, Device& device)
    : config_(config),
      options_(options),
      device_(device),
      stream_(device.NewStream()),
      tensor_(groups.tensor(), options.sequence_parallel, &lanes_),
      experts_(groups.expert(), options.experts_over_tensor, &lanes_) {}

absl::StatusOr<std::unique_ptr<LanguageModel>> LanguageModel::Create(
    const ModelConfig& config, const LanguageModelOptions& options, RankGroups& groups,
    Device& device) {
  std::unique_ptr<LanguageModel> model(new LanguageModel(config, options, groups, device));
  const int stages = groups.sizes().pipeline;
  FATHOM_ASSIGN_OR_RETURN(const std::vector<LayerRange> parts,
                          CutLayers(config, options.length, stages * options.chunks));
  for (int chunk = 0; chunk < options.chunks; ++chunk) {
    const LayerRange& layers = parts[chunk * stages + groups.coordinates().pipeline];
    model->stages_.push_back(std::make_unique<Stage>(config, layers, model->tensor_,
                                                     model->experts_, model->parameters_));
  }
  ParameterLayoutOptions layout = options.layout;
  layout.data_ranks = groups.sizes().data;
  layout.tensor_ranks = groups.sizes().tensor;
  layout.expert_replicas = groups.expert_replicas().size();
  layout.expert_tensor_ranks = groups.expert_tensor().size();
  FATHOM_RETURN_IF_ERROR(
      model->parameters_.Allocate(device, options.dtype, options.with_gradients, layout));
  for (const std::unique_ptr<Stage>& stage : model->stages_) {
    FATHOM_RETURN_IF_ERROR(stage->Prepare(device, *model->stream_, options.dtype, options.length));
  }
  return model;
}

absl::Status LanguageModel::status() const {
  FATHOM_RETURN_IF_ERROR(tensor_.status());
  return experts_.status();
}

Arena& LanguageModel::arena(size_t i) {
  while (arenas_.size() <= i) arenas_.emplace_back(device_);
  return arenas_[i];
}

int64_t LanguageModel::peak_arena_bytes() const {
  int64_t bytes = 0;
  for (const Arena& arena : arenas_) bytes += arena.peak_bytes();
  return bytes;
}

Stage& LanguageModel::stage() {
  FATHOM_CHECK(stages_.size() == 1 && stages_[0]->has_embedding() && stages_[0]->has_head());
  return *stages_[0];
}

}  // namespace fathom
