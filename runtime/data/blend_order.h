#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

namespace fathom {

// Which of several sources each sample comes from: after any number n of samples, a source of
// weight w (of a sum W) has given more than n*w/W - 1 and less than n*w/W + 1 of them, and exactly
// w of W at the end of each period. A function of n alone. Immutable, thread-safe.
class BlendOrder {
 public:
  struct Place {
    int64_t source;
    int64_t ordinal;  // how many samples of this source come before
  };

  // Weights are positive, with at most six decimals; the period, their sum over their greatest
  // common divisor, is at most kMaxPeriod. InvalidArgument, naming the weight, otherwise.
  static absl::StatusOr<BlendOrder> Create(const std::vector<double>& weights);
  static constexpr int64_t kMaxPeriod = int64_t{1} << 22;
  static constexpr int64_t kMaxSources = 65535;

  // Of sample n >= 0.
  Place At(int64_t n) const;
  // Samples of source i in a period; without a common divisor.
  const std::vector<int64_t>& shares() const { return shares_; }
  int64_t period() const { return static_cast<int64_t>(sources_.size()); }

 private:
  explicit BlendOrder(std::vector<int64_t> shares);

  std::vector<int64_t> shares_;
  std::vector<uint16_t> sources_;  // [period]
  std::vector<int64_t> counts_;    // [period / kStride, sources]: given before each kStride-th
  static constexpr int64_t kStride = 256;
};

}  // namespace fathom
