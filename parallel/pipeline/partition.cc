#include "parallel/pipeline/partition.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "core/status.h"

namespace fathom {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Costs of ranges of layers from sums over the layers before them.
class RangeCosts {
 public:
  RangeCosts(const PartitionCosts& costs, int parts)
      : first_extra_(costs.first_extra), last_extra_(costs.last_extra), parts_(parts) {
    for (const double cost : costs.layers) before_.push_back(before_.back() + cost);
  }

  int64_t layers() const { return static_cast<int64_t>(before_.size()) - 1; }
  double operator()(int part, int64_t begin, int64_t end) const {
    return before_[end] - before_[begin] + (part == 0 ? first_extra_ : 0) +
           (part == parts_ - 1 ? last_extra_ : 0);
  }

 private:
  std::vector<double> before_ = {0};
  double first_extra_;
  double last_extra_;
  int parts_;
};

// best[p][e]: the least value of the first p parts holding layers 0 to e - 1, where a range's cost
// joins the value of the parts before it through join(value, cost). from[p][e]: where part p - 1
// then begins, the earliest such place.
struct Table {
  std::vector<std::vector<double>> best;
  std::vector<std::vector<int64_t>> from;
};

template <class Join>
Table Fill(const RangeCosts& costs, int parts, Join join) {
  const int64_t layers = costs.layers();
  Table table{{static_cast<size_t>(parts) + 1, std::vector<double>(layers + 1, kInfinity)},
              {static_cast<size_t>(parts) + 1, std::vector<int64_t>(layers + 1, 0)}};
  table.best[0][0] = 0;
  for (int p = 1; p <= parts; ++p) {
    for (int64_t end = p; end <= layers; ++end) {
      for (int64_t begin = p - 1; begin < end; ++begin) {
        const double value = join(table.best[p - 1][begin], costs(p - 1, begin, end));
        if (value < table.best[p][end]) {
          table.best[p][end] = value;
          table.from[p][end] = begin;
        }
      }
    }
  }
  return table;
}

}  // namespace

absl::StatusOr<std::vector<LayerRange>> PartitionLayers(const PartitionCosts& costs, int parts) {
  const int64_t layers = static_cast<int64_t>(costs.layers.size());
  if (parts < 1 || layers < parts) {
    return absl::InvalidArgumentError(
        absl::StrCat(layers, " layers cannot be cut into ", parts,
                     " parts: there must be at least one part and one layer for each"));
  }
  std::vector<double> all = costs.layers;
  all.insert(all.end(), {costs.first_extra, costs.last_extra});
  for (const double cost : all) {
    if (!(cost >= 0 && cost < kInfinity)) {
      return absl::InvalidArgumentError(
          absl::StrCat("a layer's cost is ", cost, ", but it must be 0 or more, and finite"));
    }
  }
  const RangeCosts range_costs(costs, parts);
  const double largest = Fill(range_costs, parts, [](double value, double cost) {
                           return std::max(value, cost);
                         }).best[parts][layers];
  const Table table = Fill(range_costs, parts, [largest](double value, double cost) {
    return cost <= largest ? value + cost * cost : kInfinity;
  });
  std::vector<LayerRange> ranges(parts);
  int64_t end = layers;
  for (int p = parts; p >= 1; --p) {
    ranges[p - 1] = {table.from[p][end], end};
    end = ranges[p - 1].begin;
  }
  return ranges;
}

std::vector<double> CostsOf(const PartitionCosts& costs, const std::vector<LayerRange>& ranges) {
  std::vector<double> sums;
  for (const LayerRange& range : ranges) {
    double sum = 0;
    for (int64_t layer = range.begin; layer < range.end; ++layer) sum += costs.layers[layer];
    sums.push_back(sum);
  }
  if (!sums.empty()) {
    sums.front() += costs.first_extra;
    sums.back() += costs.last_extra;
  }
  return sums;
}

}  // namespace fathom
