#include "parallel/data/parameter_layout.h"

#include <algorithm>
#include <array>
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
    if (options_.muon) {
      AssignOwnersOfMatrices(/*of_expert=*/false);
      AssignOwnersOfMatrices(/*of_expert=*/true);
    }
    // Backward completes the parameters from the last to the first.
    for (size_t i = units_.size(); i-- > 0;) {
      switch (units_[i].role) {
        case UnitRole::kMatrices:
          AddMatrices(i);
          break;
        case UnitRole::kTable:
          // The embedding stands before all layers, the head behind them.
          CloseMatrices();
          AddBucket(UnitRole::kTable, {i});
          break;
        case UnitRole::kVectors:
          vectors_.push_back(i);
          break;
        case UnitRole::kCounts:
          counts_.push_back(i);
          break;
      }
    }
    CloseMatrices();
    if (!vectors_.empty()) AddBucket(UnitRole::kVectors, vectors_);
    if (!counts_.empty()) AddBucket(UnitRole::kCounts, counts_);
    return std::move(layout_);
  }

 private:
  // A bucket of matrices that is being filled.
  struct OpenBucket {
    UnitList units;
    int64_t elements = 0;
  };

  void AddMatrices(size_t i) {
    const int64_t elements = PaddedElements(units_[i]);
    OpenBucket& open = open_[units_[i].of_expert];
    if (open.elements + elements > options_.bucket_elements) Close(open);
    open.units.push_back(i);
    open.elements += elements;
  }

  void Close(OpenBucket& open) {
    if (!open.units.empty()) AddBucket(UnitRole::kMatrices, open.units);
    open = {};
  }

  void CloseMatrices() {
    for (OpenBucket& open : open_) Close(open);
  }

  int DataOwner(const LayoutUnit& unit) const { return layout_.owners[unit.first_parameter].data; }

  int ReplicasOf(bool of_expert) const {
    return of_expert ? options_.expert_replicas : options_.data_ranks;
  }

  // Units over the replicas, then each replica's matrices over the ranks that hold its parts, by
  // the cost of orthogonalising them.
  void AssignOwnersOfMatrices(bool of_expert) {
    const int replicas = ReplicasOf(of_expert);
    const int parts = of_expert ? options_.expert_tensor_ranks : options_.tensor_ranks;
    const auto cost = [&](const Shape& shape) {
      return NewtonSchulzFlops(shape[0], shape[1], options_.newton_schulz_steps);
    };
    UnitList with_matrices;
    std::vector<double> unit_costs;
    for (size_t i = 0; i < units_.size(); ++i) {
      if (units_[i].role != UnitRole::kMatrices || units_[i].of_expert != of_expert) continue;
      with_matrices.push_back(i);
      unit_costs.push_back(0);
      for (const Shape& shape : units_[i].matrices) unit_costs.back() += cost(shape);
    }
    const std::vector<int> data = AssignOwners(unit_costs, replicas);
    for (int d = 0; d < replicas; ++d) {
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
      const std::vector<int> tensor = AssignOwners(costs, parts);
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
    const bool of_expert = units_[units[0]].of_expert;
    const int replicas = ReplicasOf(of_expert);
    ParameterBucket bucket{.role = role, .of_expert = of_expert, .elements = {}, .counts = {}};
    bucket.elements.begin = layout_.elements;
    bucket.counts.assign(replicas, 0);
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
      bucket.counts = EvenCounts(bucket.elements.end - bucket.elements.begin, replicas);
    }
    layout_.buckets.push_back(std::move(bucket));
  }

  const std::vector<LayoutUnit>& units_;
  const ParameterLayoutOptions& options_;
  std::array<OpenBucket, 2> open_;  // of all but the experts, and of the experts
  UnitList vectors_, counts_;
  ParameterLayout layout_;
};

}  // namespace

ElementRange ParameterBucket::OwnedBy(int replica) const {
  FATHOM_CHECK(replica >= 0 && replica < static_cast<int>(counts.size()));
  const std::vector<int64_t> offsets = Offsets(counts);
  return {elements.begin + offsets[replica], elements.begin + offsets[replica + 1]};
}

ParameterLayout MakeParameterLayout(const std::vector<LayoutUnit>& units,
                                    const ParameterLayoutOptions& options) {
  return LayoutMaker(units, options).Make();
}

}  // namespace fathom
