#include "runtime/data/blend_order.h"

#include <cmath>
#include <limits>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/status.h"

namespace fathom {
namespace {

constexpr double kDecimals = 1e6;
constexpr double kMaxWeight = 1e9;

}  // namespace

absl::StatusOr<BlendOrder> BlendOrder::Create(const std::vector<double>& weights) {
  FATHOM_CHECK(!weights.empty() && weights.size() <= kMaxSources);
  std::vector<int64_t> shares;
  int64_t divisor = 0, sum = 0;
  for (const double weight : weights) {
    const double scaled = weight * kDecimals;
    // A decimal is a little off in binary, by about one part in 1e16.
    if (!(weight > 0 && weight <= kMaxWeight) || std::round(scaled) < 1 ||
        std::abs(scaled - std::round(scaled)) > 4e-16 * scaled) {
      return absl::InvalidArgumentError(absl::StrCat("weight ", weight,
                                                     " should be above 0, at most ", kMaxWeight,
                                                     ", and have at most six decimals"));
    }
    shares.push_back(std::llround(scaled));
    divisor = std::gcd(divisor, shares.back());
  }
  for (int64_t& share : shares) sum += share /= divisor;
  if (sum > kMaxPeriod) {
    return absl::InvalidArgumentError(
        absl::StrCat("the weights, as whole numbers without a common divisor, sum to ", sum,
                     ", and at most ", kMaxPeriod, " are possible: round them"));
  }
  return BlendOrder(std::move(shares));
}

// Sample s of the period belongs to a source's j-th (from 0) when j/share <= (s + 1)/period and
// s/period < (j + 1)/share. Those windows bound the counts as promised, and taking, of all sources
// whose window is open, the one whose closes first, never misses one (earliest deadline first is
// optimal for unit tasks; for windows of fractions: Baruah, Cohen, Plaxton, Varvel, "Proportionate
// progress", Algorithmica 1996).
BlendOrder::BlendOrder(std::vector<int64_t> shares) : shares_(std::move(shares)) {
  const int64_t count = shares_.size();
  const int64_t period = std::accumulate(shares_.begin(), shares_.end(), int64_t{0});
  std::vector<int64_t> given(count, 0);
  sources_.reserve(period);
  for (int64_t s = 0; s < period; ++s) {
    if (s % kStride == 0) counts_.insert(counts_.end(), given.begin(), given.end());
    int64_t best = -1, best_end = std::numeric_limits<int64_t>::max();
    for (int64_t i = 0; i < count; ++i) {
      if (given[i] * period / shares_[i] > s) continue;  // its window opens later
      const int64_t end = ((given[i] + 1) * period + shares_[i] - 1) / shares_[i];
      if (end < best_end) best = i, best_end = end;
    }
    FATHOM_CHECK(best >= 0 && best_end > s) << "a window was missed";
    ++given[best];
    sources_.push_back(static_cast<uint16_t>(best));
  }
}

BlendOrder::Place BlendOrder::At(int64_t n) const {
  FATHOM_CHECK(n >= 0);
  const int64_t round = n / period(), s = n % period();
  const int64_t source = sources_[s];
  const int64_t stride = s / kStride;
  int64_t ordinal = round * shares_[source] + counts_[stride * shares_.size() + source];
  for (int64_t i = stride * kStride; i < s; ++i) ordinal += sources_[i] == source;
  return {source, ordinal};
}

}  // namespace fathom
