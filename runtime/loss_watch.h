#pragma once

#include <cstdint>
#include <optional>

namespace fathom {

// Finds steps whose loss jumps up. Mean and deviation run over about the last hundred steps:
//   d = loss - mean;  mean += a*d;  variance = (1 - a)*(variance + a*d^2),  a = max(1/count, 0.01)
// A loss is a spike when it exceeds the mean by more than five deviations, where a deviation counts
// as at least 1% of the mean, and twenty losses have been seen. What a spike adds to the running
// figures is cut off at five deviations, so that one spike does not hide the next, and a lasting
// rise stops being one.
class LossWatch {
 public:
  struct Spike {
    double mean = 0;
    double deviations = 0;  // the loss's distance from the mean
    int64_t count = 0;      // of spikes so far, this one included
  };

  // The loss of the next step. A loss that is not finite is left out: such steps are skipped.
  std::optional<Spike> Add(double loss);
  int64_t spikes() const { return spikes_; }

 private:
  int64_t seen_ = 0;
  int64_t spikes_ = 0;
  double mean_ = 0;
  double variance_ = 0;
};

}  // namespace fathom
