#include "parallel/data/parameter_layout.h"

#include <algorithm>
#include <numeric>

#include "core/check.h"
#include "parallel/counts.h"
#include "parallel/data/owners.h"

namespace fathom {
namespace {

// Elements; units start at 256-byte borders in float32.
constexpr int64_t kAlignment = 64;

int64_t PaddedElements(const LayoutUnit& unit) {
  const int64_t elements = std::accumulate(unit.elements.begin(), unit.elements.end(), int64_t{0});
  return (elements + kAlignment - 1) / kAlignment * kAlignment;
}

// Units that become one bucket, by their place in the list of units.
using UnitList = std::vector<size_t>;

class LayoutMaker {
 public:
  LayoutMaker(const std::vector<LayoutUnit>& units, const ParameterLayoutOptions& options)
      : units_(units), options_(options) {
    size_t parameters = 0;
    for (const LayoutUnit& unit : units) parameters += unit.elements.size();
    layout_.offsets.resize(parameters);
    layout_.owners.resize(parameters);
  }

  ParameterLayout Make() {
    if (options_.muon) AssignOwnersOfMatrices();
    UnitList matrices, vectors;
    int64_t matrix_elements = 0;
    const auto close_matrices = [&] {
      if (!matrices.empty()) AddBucket(UnitRole::kMatrices, matrices);
      matrices.clear();
      matrix_elements = 0;
    };
    // Backward completes the parameters from the last to the first.
    for (size_t i = units_.size(); i-- > 0;) {
      const int64_t elements = PaddedElements(units_[i]);
      switch (units_[i].role) {
        case UnitRole::kMatrices:
          if (matrix_elements + elements > options_.bucket_elements) close_matrices();
          matrices.push_back(i);
          matrix_elements += elements;
          break;
        case UnitRole::kTable:
          // The embedding stands before all layers, the head behind them.
          close_matrices();
          AddBucket(UnitRole::kTable, {i});
          break;
        case UnitRole::kVectors:
          vectors.push_back(i);
          break;
      }
    }
    close_matrices();
    if (!vectors.empty()) AddBucket(UnitRole::kVectors, vectors);
    return std::move(layout_);
  }

 private:
  int DataOwner(const LayoutUnit& unit) const { return layout_.owners[unit.first_parameter].data; }

  // Units over the data ranks, then each data rank's matrices over its tensor ranks, by the cost of
  // orthogonalising them.
  void AssignOwnersOfMatrices() {
    const auto cost = [&](const Shape& shape) {
      return NewtonSchulzFlops(shape[0], shape[1], options_.newton_schulz_steps);
    };
    UnitList with_matrices;
    std::vector<double> unit_costs;
    for (size_t i = 0; i < units_.size(); ++i) {
      if (units_[i].role != UnitRole::kMatrices) continue;
      with_matrices.push_back(i);
      unit_costs.push_back(0);
      for (const Shape& shape : units_[i].matrices) unit_costs.back() += cost(shape);
    }
    const std::vector<int> data = AssignOwners(unit_costs, options_.data_ranks);
    for (int d = 0; d < options_.data_ranks; ++d) {
      std::vector<size_t> parameters;
      std::vector<double> costs;
      for (size_t k = 0; k < with_matrices.size(); ++k) {
        if (data[k] != d) continue;
        const LayoutUnit& unit = units_[with_matrices[k]];
        for (size_t m = 0; m < unit.matrices.size(); ++m) {
          parameters.push_back(unit.first_parameter + m);
          costs.push_back(cost(unit.matrices[m]));
        }
      }
      const std::vector<int> tensor = AssignOwners(costs, options_.tensor_ranks);
      for (size_t k = 0; k < parameters.size(); ++k) {
        layout_.owners[parameters[k]] = {.data = d, .tensor = tensor[k]};
      }
    }
  }

  void AddBucket(UnitRole role, UnitList units) {
    const bool owned_whole = role == UnitRole::kMatrices && options_.muon;
    if (owned_whole) {
      std::stable_sort(units.begin(), units.end(), [&](size_t a, size_t b) {
        return DataOwner(units_[a]) < DataOwner(units_[b]);
      });
    }
    ParameterBucket bucket{.role = role, .elements = {}, .counts = {}};
    bucket.elements.begin = layout_.elements;
    bucket.counts.assign(options_.data_ranks, 0);
    bucket.first_parameter = units_[units[0]].first_parameter;
    for (const size_t i : units) {
      const LayoutUnit& unit = units_[i];
      bucket.first_parameter = std::min(bucket.first_parameter, unit.first_parameter);
      int64_t offset = layout_.elements;
      for (size_t m = 0; m < unit.elements.size(); ++m) {
        layout_.offsets[unit.first_parameter + m] = offset;
        offset += unit.elements[m];
      }
      layout_.elements += PaddedElements(unit);
      if (owned_whole) bucket.counts[DataOwner(unit)] += PaddedElements(unit);
    }
    bucket.elements.end = layout_.elements;
    if (!owned_whole) {
      bucket.counts = EvenCounts(bucket.elements.end - bucket.elements.begin, options_.data_ranks);
    }
    layout_.buckets.push_back(std::move(bucket));
  }

  const std::vector<LayoutUnit>& units_;
  const ParameterLayoutOptions& options_;
  ParameterLayout layout_;
};

}  // namespace

ElementRange ParameterBucket::OwnedBy(int data_rank) const {
  FATHOM_CHECK(data_rank >= 0 && data_rank < static_cast<int>(counts.size()));
  const std::vector<int64_t> offsets = Offsets(counts);
  return {elements.begin + offsets[data_rank], elements.begin + offsets[data_rank + 1]};
}

ParameterLayout MakeParameterLayout(const std::vector<LayoutUnit>& units,
                                    const ParameterLayoutOptions& options) {
  return LayoutMaker(units, options).Make();
}

}  // namespace fathom
