#pragma once

#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/data/sampler.h"
#include "runtime/step_runner.h"

namespace fathom {

struct EvaluationOptions {
  Routing routing = Routing::kCausal;
  int64_t sequences = 0;  // how many samples are evaluated, from the sampler's first on
  int64_t batch = 1;      // sequences at a time
  // Called for each batch in order: the number of its first sequence, its tokens and labels, and
  // the loss of every row. May be empty.
  std::function<absl::Status(int64_t, const HostBatch&, const std::vector<double>&)> on_losses;
};

struct EvaluationResult {
  double loss = 0;     // cross-entropy in nats, mean over the counted labels
  int64_t labels = 0;  // how many were counted
  // Of each layer, the share of the tokens that it saw.
  std::vector<double> layer_share;
  // Of each layer with experts, by its place in the plan, the rows that went to each expert; empty
  // for the other layers.
  std::vector<std::vector<double>> expert_rows;

  // The mean of it over the sparse layers; 1 for a model without any.
  double routed_share(const LayerPlan& plan) const;
};

// Runs samples 0 to sequences - 1 through the model, without gradients. Called by all ranks, which
// all get the result; `on_losses` sees what this rank evaluated.
absl::StatusOr<EvaluationResult> Evaluate(StepRunner& runner, const Sampler& sampler,
                                          const EvaluationOptions& options);

}  // namespace fathom
