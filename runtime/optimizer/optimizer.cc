#include "runtime/optimizer/optimizer.h"

#include <utility>

#include "core/status.h"
#include "kernels/elementwise.h"
#include "kernels/optimizer.h"

namespace fathom {

Optimizer::Optimizer(const OptimizerConfig& config, const ParameterTable& table)
    : config_(config), table_(table) {}

bool Optimizer::UsesMuon(const Parameter& parameter) const {
  return config_.muon && parameter.spec.role == ParameterRole::kMatrix;
}

absl::StatusOr<std::unique_ptr<Optimizer>> Optimizer::Create(const OptimizerConfig& config,
                                                             const ParameterTable& table,
                                                             Device& device, Stream& stream) {
  std::unique_ptr<Optimizer> optimizer(new Optimizer(config, table));
  int64_t elements = 0;
  for (const Parameter& parameter : table.all()) {
    elements += (optimizer->UsesMuon(parameter) ? 1 : 2) * parameter.master.elements();
  }
  const DType dtype = table.gradients().dtype();
  FATHOM_ASSIGN_OR_RETURN(optimizer->state_buffer_,
                          Buffer::Allocate(device, elements * SizeOf(dtype)));
  FATHOM_ASSIGN_OR_RETURN(optimizer->scalars_,
                          Buffer::Allocate(device, (kStepScalars + 1) * sizeof(double)));
  optimizer->step_ = optimizer->scalars_.View(0, DType::kFloat64, {kStepScalars});
  optimizer->squared_norm_ =
      optimizer->scalars_.View(kStepScalars * sizeof(double), DType::kFloat64, {1});

  std::vector<MuonMatrix> matrices;
  int64_t offset = 0;
  const auto add_state = [&](const Parameter& parameter, const char* suffix) {
    const Tensor tensor = optimizer->state_buffer_.View(offset, dtype, parameter.spec.shape);
    offset += tensor.bytes();
    optimizer->state_.push_back({absl::StrCat(parameter.spec.name, ".", suffix), tensor});
    return tensor;
  };
  for (const Parameter& parameter : table.all()) {
    if (optimizer->UsesMuon(parameter)) {
      matrices.push_back({parameter.master, parameter.gradient, add_state(parameter, "momentum")});
    } else {
      const Shape flat{parameter.master.elements()};
      const Tensor first = add_state(parameter, "first").Reshape(flat);
      const Tensor second = add_state(parameter, "second").Reshape(flat);
      optimizer->adam_.push_back({&parameter, first, second});
    }
  }
  optimizer->muon_ = std::make_unique<Muon>(config, std::move(matrices));
  Launch(stream, Fill{.value = 0, .y = optimizer->state_buffer_.View(0, dtype, {elements})});
  Launch(stream, Fill{.value = 0, .y = optimizer->step_});
  return optimizer;
}

void Optimizer::Step(Stream& stream, Arena& arena, double learning_rate, const Tensor& loss) {
  learning_rate_ = learning_rate;
  stream.CopyToDevice(&learning_rate_, step_.Rows(kLearningRate, kLearningRate + 1));
  Launch(stream, Fill{.value = 0, .y = squared_norm_});
  Launch(stream, SumOfSquares{.x = table_.gradients(), .sum = squared_norm_});
  Launch(stream,
         PrepareStep{
             .squared_norm = squared_norm_, .loss = loss, .clip = config_.clip, .step = step_});
  for (const Moments& moments : adam_) {
    const Shape flat{moments.parameter->master.elements()};
    Launch(stream, AdamW{.gradient = moments.parameter->gradient.Reshape(flat),
                         .step = step_,
                         .decay = moments.parameter->decayed() ? config_.weight_decay : 0,
                         .beta1 = config_.beta1,
                         .beta2 = config_.beta2,
                         .epsilon = config_.epsilon,
                         .first = moments.first,
                         .second = moments.second,
                         .weight = moments.parameter->master.Reshape(flat)});
  }
  muon_->Step(stream, arena, step_);
  table_.RoundWeights(stream);
}

}  // namespace fathom
