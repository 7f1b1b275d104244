#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/job.h"

namespace fathom {

// One parameter of a model, by the name that checkpoints give it.
struct CountedParameter {
  std::string name;           // e.g. "model.layers.3.mlp.up_proj.weight"
  std::vector<int64_t> dims;  // matrices are [out, in]; empty for a scalar
  double share = 1;           // of the tokens that use it: 1/K in a sparse layer

  int64_t elements() const;
};

// Every parameter of a model: the embedding, the layers in order, the final norm, the head. Of an
// expert's, `share` is the routed of E experts that a token of its layer goes to.
std::vector<CountedParameter> EnumerateParameters(const ModelConfig& model);

struct ParameterCounts {
  int64_t total = 0;   // everything that exists
  int64_t active = 0;  // each counted by the share of tokens that use it; rounded
};

ParameterCounts CountParameters(const ModelConfig& model);

// Floating-point operations per token, where a multiplication and an addition are two. Only matrix
// products and the router's dot products count.
struct FlopsPerToken {
  // Convention "paper": forward, attention over the full square of each sequence, layers only (no
  // head, no router, no gate of experts); of a sparse layer 1/K of the linear work and (L/K)^2 of
  // the attention.
  double paper_forward = 0;
  // Convention "exact": causal attention as executed, within documents, with the SelectedPairs of
  // the k = floor(L/K) tokens that a layer sees; linear work on exactly k tokens; the head, the
  // routers, and the gates of experts for these k tokens.
  double exact_forward = 0;
  // Forward and backward; recomputation is not counted.
  double exact_training = 0;
};

// The query-key pairs of causal attention among the tokens that a layer sees of one sequence: k of
// its L, when `pairs` are those among all L (the sum of l(l+1)/2 over its documents). Exact for
// k = L and for a sequence of one document, where it is k(k+1)/2. For others it is the expected
// number when every set of k tokens is equally likely:
//   k + k(k-1) / (L(L-1)) * (pairs - L),
// the chance that two different tokens are both selected, times the pairs of such tokens. How many
// there really are depends on the selection, which only the device knows; costs are counted from
// what the host knows, so that they are the same for every run on the same data.
double SelectedPairs(double pairs, int64_t length, int64_t selected);

// For sequences of `sequence_length` tokens, with the selection of training (top-k). `pairs`: the
// query-key pairs of causal attention within the documents of a sequence, or their mean over
// several sequences; by default each sequence is one document. Convention "paper" knows no
// documents.
FlopsPerToken CountFlopsPerToken(const ModelConfig& model, int64_t sequence_length,
                                 std::optional<double> pairs = std::nullopt);

// Forward FLOPs per token in the exact convention, by what computes them.
struct LayerFlops {
  std::vector<double> layers;
  double head = 0;
};
LayerFlops CountLayerFlops(const ModelConfig& model, int64_t sequence_length,
                           std::optional<double> pairs = std::nullopt);

}  // namespace fathom
