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

namespace {

// Of all ranks.
struct Totals {
  double loss = 0;
  double labels = 0;
  StepRunner::RowCounts counts;
};

// Data ranks take batches in turns. Those that exchange rows with experts on other data ranks run
// together: who has no batch left runs the first one once more, which does not count.
absl::Status EvaluateShare(StepRunner& runner, const Sampler& sampler,
                           const EvaluationOptions& options, Totals* totals) {
  const RankGroups& groups = runner.groups();
  const int64_t data_ranks = groups.sizes().data;
  const int64_t stride = data_ranks * options.batch;
  const bool together = runner.model().config().plan.has_experts() && data_ranks > 1;
  for (int64_t round = 0; round * stride < options.sequences; ++round) {
    int64_t first = round * stride + groups.coordinates().data * options.batch;
    const bool counts = first < options.sequences;
    if (!counts && !together) break;
    if (!counts) first = 0;
    const int64_t sequences = std::min(options.batch, options.sequences - first);
    HostBatch host = HostBatch::WholeSequences(sequences, runner.model().length());
    FATHOM_RETURN_IF_ERROR(sampler.FillBatch(first, &host));
    std::vector<double> losses;
    StepRunner::RowCounts ignored = runner.NoRows();
    FATHOM_RETURN_IF_ERROR(
        runner.Evaluate(host, options.routing, &losses, counts ? &totals->counts : &ignored));
    if (!counts) continue;
    for (size_t i = 0; i < losses.size(); ++i) {
      totals->loss += losses[i];
      totals->labels += host.labels[i] >= 0;
    }
    if (options.on_losses) FATHOM_RETURN_IF_ERROR(options.on_losses(first, host, losses));
  }
  return absl::OkStatus();
}

absl::Status SumOverRanks(StepRunner& runner, Totals* totals) {
  RankGroups& groups = runner.groups();
  std::vector<int64_t>& layer_rows = totals->counts.layer_rows;
  std::vector<double>& expert_rows = totals->counts.expert_rows;
  std::vector<double> sums(2 + layer_rows.size());
  // Of what tensor ranks have in common one is counted.
  if (groups.tensor().rank() == 0) {
    sums[0] = totals->loss;
    sums[1] = totals->labels;
    std::copy(layer_rows.begin(), layer_rows.end(), sums.begin() + 2);
  }
  sums.insert(sums.end(), expert_rows.begin(), expert_rows.end());
  Stream& stream = runner.model().stream();
  const int64_t count = sums.size();
  FATHOM_RETURN_IF_ERROR(
      groups.world()
          .AllReduce(Tensor(sums.data(), DType::kFloat64, {count}), ReduceOp::kSum, stream)
          .Wait(stream));
  totals->loss = sums[0];
  totals->labels = sums[1];
  for (size_t i = 0; i < layer_rows.size(); ++i) {
    layer_rows[i] = static_cast<int64_t>(sums[2 + i]);
  }
  std::copy(sums.begin() + 2 + layer_rows.size(), sums.end(), expert_rows.begin());
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<EvaluationResult> Evaluate(StepRunner& runner, const Sampler& sampler,
                                          const EvaluationOptions& options) {
  Totals totals{.counts = runner.NoRows()};
  FATHOM_RETURN_IF_ERROR(EvaluateShare(runner, sampler, options, &totals));
  FATHOM_RETURN_IF_ERROR(SumOverRanks(runner, &totals));
  EvaluationResult result;
  result.labels = static_cast<int64_t>(totals.labels);
  if (result.labels == 0) {
    return absl::InvalidArgumentError("evaluation: there is no token to predict");
  }
  result.loss = totals.loss / totals.labels;
  const ModelConfig& config = runner.model().config();
  const double rows = static_cast<double>(options.sequences * runner.model().length());
  for (size_t layer = 0; layer < config.plan.layers.size(); ++layer) {
    result.layer_share.push_back(static_cast<double>(totals.counts.layer_rows[layer]) / rows);
    std::vector<double>& expert_rows = result.expert_rows.emplace_back();
    if (!config.plan.layers[layer].spec.experts) continue;
    const auto begin = totals.counts.expert_rows.begin() + layer * config.experts;
    expert_rows.assign(begin, begin + config.experts);
  }
  return result;
}

}  // namespace fathom
