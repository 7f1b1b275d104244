#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace fathom {

enum class LayerKind {
  kDense,   // attention and FFN over all tokens (Dense and MoE)
  kSparse,  // attention and FFN over the selected tokens (X-MoD and MoD)
};

struct LayerSpec {
  LayerKind kind = LayerKind::kDense;
  int64_t sparsity = 1;  // K: a sparse layer sees the top floor(L / K) tokens; 1 for dense
  bool experts = false;  // its FFN is a mixture of experts

  bool operator==(const LayerSpec&) const = default;
};

// A layer, or a group of segments, repeated.
struct PlanSegment {
  int64_t repeat = 1;
  LayerSpec layer;  // when `group` is empty
  std::vector<PlanSegment> group;
};

// One layer as it executes, in order of depth.
struct PlannedLayer {
  LayerSpec spec;
  bool resets_counts = false;  // the token-choice counts are set to 0 after this layer
};

// Which layers a model has, in order.
struct LayerPlan {
  std::vector<PlanSegment> segments;
  std::vector<PlannedLayer> layers;  // the segments, written out

  // Every layer counted by the share of tokens that it sees, e.g. 28 for X-MoD A3K16.
  double active_layers() const;
  // Whether a layer's FFN is a mixture of experts.
  bool has_experts() const;
  // Whether a layer's FFN is not.
  bool has_dense_ffn() const;
};

// Writes out the segments. Counts are reset after every layer that sees all tokens and, with
// `reset_every` > 0, also after every `reset_every`-th sparse layer since the last reset.
LayerPlan MakeLayerPlan(std::vector<PlanSegment> segments, int64_t reset_every);

// "D" and "S16", with a mixture of experts "E" and "SE16".
std::string ShortForm(const LayerSpec& layer);

// "4*D + 6*(48*S16 + D)".
std::string ShortForm(const std::vector<PlanSegment>& segments);

}  // namespace fathom
