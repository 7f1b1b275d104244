#include "runtime/evaluation.h"

#include <algorithm>

#include "core/status.h"

namespace fathom {
namespace {

std::vector<double> LossesToHost(Stream& stream, const Tensor& losses, absl::Status* status) {
  std::vector<char> raw(losses.bytes());
  stream.CopyToHost(losses, raw.data());
  *status = stream.Synchronize();
  std::vector<double> values(losses.elements());
  ConvertElements(raw.data(), losses.dtype(), values.data(), DType::kFloat64, values.size());
  return values;
}

// The losses of one batch; adds to the rows that each layer saw.
absl::StatusOr<std::vector<double>> RunBatch(LanguageModel& model, const HostBatch& host,
                                             Routing routing, std::vector<int64_t>* layer_rows) {
  Stream& stream = model.stream();
  Arena& arena = model.arena();
  ArenaScope scope(arena);
  const MicroBatch batch = Upload(host, stream, arena);
  Pass pass = model.stage().NewPass(stream, arena, batch);
  pass.routing = routing;
  const Tensor losses = arena.New(StatisticsDType(model.dtype()), {batch.rows()});
  model.stage().Forward(pass, batch);
  model.stage().Loss(pass, batch, /*loss_weight=*/0, losses);

  std::vector<int32_t> selected(layer_rows->size());
  stream.CopyToHost(pass.selected, selected.data());
  absl::Status status;
  std::vector<double> values = LossesToHost(stream, losses, &status);
  FATHOM_RETURN_IF_ERROR(status);
  for (size_t layer = 0; layer < selected.size(); ++layer) (*layer_rows)[layer] += selected[layer];
  return values;
}

}  // namespace

double EvaluationResult::routed_share(const LayerPlan& plan) const {
  double sum = 0;
  int64_t sparse = 0;
  for (size_t layer = 0; layer < layer_share.size(); ++layer) {
    if (plan.layers[layer].spec.kind != LayerKind::kSparse) continue;
    sum += layer_share[layer];
    ++sparse;
  }
  return sparse == 0 ? 1 : sum / static_cast<double>(sparse);
}

absl::StatusOr<EvaluationResult> Evaluate(LanguageModel& model, const Sampler& sampler,
                                          const EvaluationOptions& options) {
  const int64_t length = model.length();
  const size_t layers = model.config().plan.layers.size();
  std::vector<int64_t> layer_rows(layers);
  EvaluationResult result;
  double sum = 0;
  for (int64_t first = 0; first < options.sequences; first += options.batch) {
    const int64_t sequences = std::min(options.batch, options.sequences - first);
    HostBatch host = HostBatch::WholeSequences(sequences, length);
    FATHOM_RETURN_IF_ERROR(sampler.FillBatch(first, &host));
    FATHOM_ASSIGN_OR_RETURN(const std::vector<double> losses,
                            RunBatch(model, host, options.routing, &layer_rows));
    for (size_t i = 0; i < losses.size(); ++i) {
      sum += losses[i];
      result.labels += host.labels[i] >= 0;
    }
    if (options.on_losses) FATHOM_RETURN_IF_ERROR(options.on_losses(first, host, losses));
  }
  if (result.labels == 0) {
    return absl::InvalidArgumentError("evaluation: there is no token to predict");
  }
  result.loss = sum / static_cast<double>(result.labels);
  const double rows = static_cast<double>(options.sequences * length);
  for (int64_t count : layer_rows) {
    result.layer_share.push_back(static_cast<double>(count) / rows);
  }
  return result;
}

}  // namespace fathom
