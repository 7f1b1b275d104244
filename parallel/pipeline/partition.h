#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

// Which layers stand on which pipeline stage.
namespace fathom {

// Layers begin to end - 1.
struct LayerRange {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t size() const { return end - begin; }
  bool operator==(const LayerRange&) const = default;
};

struct PartitionCosts {
  std::vector<double> layers;  // one per layer, in any unit, 0 or more
  double first_extra = 0;      // of the first part: the embedding
  double last_extra = 0;       // of the last part: the head and the loss
};

// Cuts the layers into `parts` consecutive ranges, none of them empty, whose most expensive one is
// as cheap as it can be; among these cuts, the one with the smallest sum of squared costs, and then
// the one whose later parts begin earliest. Exact, in O(parts x layers^2). InvalidArgument for
// fewer layers than parts or a cost below 0.
//
// For an interleaved schedule, cut into stages x chunks parts; part v is chunk v / stages of stage
// v % stages.
absl::StatusOr<std::vector<LayerRange>> PartitionLayers(const PartitionCosts& costs, int parts);

// The cost of each range.
std::vector<double> CostsOf(const PartitionCosts& costs, const std::vector<LayerRange>& ranges);

}  // namespace fathom
