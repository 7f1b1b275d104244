#include "runtime/loss_watch.h"

#include <algorithm>
#include <cmath>

namespace fathom {
namespace {

constexpr double kSmallestWeight = 0.01;
constexpr double kSpikeDeviations = 5;
constexpr double kSmallestDeviation = 0.01;  // of the mean
constexpr int64_t kLossesToStart = 20;

}  // namespace

std::optional<LossWatch::Spike> LossWatch::Add(double loss) {
  if (!std::isfinite(loss)) return std::nullopt;
  const double deviation = std::max(std::sqrt(variance_), kSmallestDeviation * std::abs(mean_));
  std::optional<Spike> spike;
  double difference = loss - mean_;
  if (seen_ >= kLossesToStart && difference > kSpikeDeviations * deviation) {
    spike = Spike{.mean = mean_, .deviations = difference / deviation, .count = ++spikes_};
    difference = kSpikeDeviations * deviation;
  }
  ++seen_;
  const double weight = std::max(1 / static_cast<double>(seen_), kSmallestWeight);
  mean_ += weight * difference;
  variance_ = (1 - weight) * (variance_ + weight * difference * difference);
  return spike;
}

}  // namespace fathom
