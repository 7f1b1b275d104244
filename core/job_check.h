#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace fathom {

// Collects the first refusal of a job's values. Used by the conversion of jobs only.
//
//   JobChecks checks;
//   checks.Between("train.steps", steps, 1, kMaximumCount);
//   if (!checks.ok()) return checks.status();
class JobChecks {
 public:
  bool ok() const { return status_.ok(); }
  const absl::Status& status() const { return status_; }

  // Refuses with "PATH is VALUE, but it must be RIGHT" unless `good`.
  template <class Value>
  void Require(bool good, const std::string& path, const Value& value, const std::string& right) {
    if (good || !ok()) return;
    status_ =
        absl::InvalidArgumentError(absl::StrCat(path, " is ", value, ", but it must be ", right));
  }

  // Both ends are allowed.
  template <class Value>
  void Between(const std::string& path, Value value, Value least, Value most) {
    Require(value >= least && value <= most, path, value,
            absl::StrCat("between ", least, " and ", most));
  }
  void NotNegative(const std::string& path, double value) {
    Require(value >= 0, path, value, "0 or more");
  }
  void Positive(const std::string& path, double value) {
    Require(value > 0, path, value, "greater than 0");
  }

 private:
  absl::Status status_;
};

}  // namespace fathom
