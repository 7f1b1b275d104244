#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/job.h"

namespace fathom {

// One parameter of a model, by the name that checkpoints give it.
struct CountedParameter {
  std::string name;           // e.g. "model.layers.3.mlp.up_proj.weight"
  std::vector<int64_t> dims;  // matrices are [out, in]; empty for a scalar
  double share = 1;           // of the tokens that its layer sees: 1/K in a sparse layer

  int64_t elements() const;
};

// Every parameter of a model: the embedding, the layers in order, the final norm, the head.
std::vector<CountedParameter> EnumerateParameters(const ModelConfig& model);

struct ParameterCounts {
  int64_t total = 0;   // everything that exists
  int64_t active = 0;  // each layer counted by the share of tokens that it sees; rounded
};

ParameterCounts CountParameters(const ModelConfig& model);

// Floating-point operations per token, where a multiplication and an addition are two. Only matrix
// products and the router's dot products count.
struct FlopsPerToken {
  // Convention "paper": forward, attention over the full square of each sequence, layers only (no
  // head, no router); of a sparse layer 1/K of the linear work and (L/K)^2 of the attention.
  double paper_forward = 0;
  // Convention "exact": causal attention as executed, k(k+1)/2 pairs of the k = floor(L/K) selected
  // tokens of a sequence; linear work on exactly k tokens; the head and the routers.
  double exact_forward = 0;
  // Forward and backward; recomputation is not counted.
  double exact_training = 0;
};

// For sequences of `sequence_length` tokens, with the selection of training (top-k).
FlopsPerToken CountFlopsPerToken(const ModelConfig& model, int64_t sequence_length);

// Forward FLOPs per token in the exact convention, by what computes them: for balancing.
struct LayerFlops {
  std::vector<double> layers;
  double head = 0;
};
LayerFlops CountLayerFlops(const ModelConfig& model, int64_t sequence_length);

}  // namespace fathom
