#include "runtime/language_model.h"

#include "core/status.h"

namespace fathom {

LanguageModel::LanguageModel(const ModelConfig& config, DType dtype, int64_t length, Device& device)
    : dtype_(dtype),
      length_(length),
      device_(device),
      stream_(device.NewStream()),
      arena_(device),
      stage_(config, parameters_) {}

absl::StatusOr<std::unique_ptr<LanguageModel>> LanguageModel::Create(const ModelConfig& config,
                                                                     DType dtype, int64_t length,
                                                                     Device& device,
                                                                     bool with_gradients) {
  std::unique_ptr<LanguageModel> model(new LanguageModel(config, dtype, length, device));
  FATHOM_RETURN_IF_ERROR(model->parameters_.Allocate(device, dtype, with_gradients));
  FATHOM_RETURN_IF_ERROR(model->stage_.Prepare(device, *model->stream_, dtype, length));
  return model;
}

}  // namespace fathom
