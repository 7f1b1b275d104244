#include "core/plan.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "core/check.h"

namespace fathom {
namespace {

// Appends the layers of `segments`, in order, without resets.
void WriteOut(const std::vector<PlanSegment>& segments, std::vector<PlannedLayer>* layers) {
  for (const PlanSegment& segment : segments) {
    for (int64_t i = 0; i < segment.repeat; ++i) {
      if (segment.group.empty()) {
        layers->push_back({.spec = segment.layer, .resets_counts = false});
      } else {
        WriteOut(segment.group, layers);
      }
    }
  }
}

}  // namespace

double LayerPlan::active_layers() const {
  double active = 0;
  for (const PlannedLayer& layer : layers) {
    active += 1.0 / static_cast<double>(layer.spec.sparsity);
  }
  return active;
}

bool LayerPlan::has_experts() const {
  return std::any_of(layers.begin(), layers.end(),
                     [](const PlannedLayer& layer) { return layer.spec.experts; });
}

bool LayerPlan::has_dense_ffn() const {
  return std::any_of(layers.begin(), layers.end(),
                     [](const PlannedLayer& layer) { return !layer.spec.experts; });
}

LayerPlan MakeLayerPlan(std::vector<PlanSegment> segments, int64_t reset_every) {
  LayerPlan plan;
  WriteOut(segments, &plan.layers);
  int64_t since_reset = 0;
  for (PlannedLayer& layer : plan.layers) {
    const bool sees_all_tokens = layer.spec.kind != LayerKind::kSparse;
    if (!sees_all_tokens) ++since_reset;
    layer.resets_counts = sees_all_tokens || (reset_every > 0 && since_reset == reset_every);
    if (layer.resets_counts) since_reset = 0;
  }
  plan.segments = std::move(segments);
  return plan;
}

std::string ShortForm(const LayerSpec& layer) {
  switch (layer.kind) {
    case LayerKind::kDense:
      return layer.experts ? "E" : "D";
    case LayerKind::kSparse:
      return absl::StrCat(layer.experts ? "SE" : "S", layer.sparsity);
  }
  FATHOM_CHECK(false) << "unknown layer kind " << static_cast<int>(layer.kind);
  return "";
}

std::string ShortForm(const std::vector<PlanSegment>& segments) {
  std::string text;
  for (const PlanSegment& segment : segments) {
    if (!text.empty()) text += " + ";
    if (segment.repeat != 1) absl::StrAppend(&text, segment.repeat, "*");
    if (segment.group.empty()) {
      text += ShortForm(segment.layer);
    } else {
      absl::StrAppend(&text, "(", ShortForm(segment.group), ")");
    }
  }
  return text;
}

}  // namespace fathom
