#include "runtime/evaluation.h"

#include <algorithm>

#include "core/status.h"

namespace fathom {
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

absl::StatusOr<EvaluationResult> Evaluate(StepRunner& runner, const Sampler& sampler,
                                          const EvaluationOptions& options) {
  RankGroups& groups = runner.groups();
  const int64_t length = runner.model().length();
  const size_t layers = runner.model().config().plan.layers.size();
  const int64_t data_ranks = groups.sizes().data;
  std::vector<int64_t> layer_rows(layers);
  double sum = 0, labels = 0;
  // Data ranks take batches in turns.
  for (int64_t first = groups.coordinates().data * options.batch; first < options.sequences;
       first += data_ranks * options.batch) {
    const int64_t sequences = std::min(options.batch, options.sequences - first);
    HostBatch host = HostBatch::WholeSequences(sequences, length);
    FATHOM_RETURN_IF_ERROR(sampler.FillBatch(first, &host));
    std::vector<double> losses;
    FATHOM_RETURN_IF_ERROR(runner.Evaluate(host, options.routing, &losses, &layer_rows));
    for (size_t i = 0; i < losses.size(); ++i) {
      sum += losses[i];
      labels += host.labels[i] >= 0;
    }
    if (options.on_losses) FATHOM_RETURN_IF_ERROR(options.on_losses(first, host, losses));
  }

  // Of what tensor ranks have in common one is counted.
  std::vector<double> totals(2 + layers);
  if (groups.tensor().rank() == 0) {
    totals[0] = sum;
    totals[1] = labels;
    std::copy(layer_rows.begin(), layer_rows.end(), totals.begin() + 2);
  }
  Stream& stream = runner.model().stream();
  const int64_t count = totals.size();
  FATHOM_RETURN_IF_ERROR(
      groups.world()
          .AllReduce(Tensor(totals.data(), DType::kFloat64, {count}), ReduceOp::kSum, stream)
          .Wait(stream));
  EvaluationResult result;
  result.labels = static_cast<int64_t>(totals[1]);
  if (result.labels == 0) {
    return absl::InvalidArgumentError("evaluation: there is no token to predict");
  }
  result.loss = totals[0] / totals[1];
  const double rows = static_cast<double>(options.sequences * length);
  for (size_t layer = 0; layer < layers; ++layer) {
    result.layer_share.push_back(totals[2 + layer] / rows);
  }
  return result;
}

}  // namespace fathom
