#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/file.h"

namespace fathom {

// Something in which two checkpoints, dumps or files are not the same.
struct Difference {
  std::string where;    // "gradients: model.norm.weight", "step.json: loss"
  std::string what;     // where in the tensor, both values, how far; or what is missing
  double relative = 0;  // max|a - b| / max|b|; infinite for NaN and where nothing can be compared
  bool beyond = false;  // the tolerance
};

struct Comparison {
  int64_t tensors = 0;                  // of the first that the second has too
  int64_t numbers = 0;                  // likewise: of step.json or of the manifest
  std::vector<Difference> differences;  // worst first; empty: all bits are equal
  int64_t beyond = 0;                   // how many of them exceed the tolerance
};

// Compares two checkpoints (or runs, for their newest), two dumps, two other directories with
// safetensors files, or two safetensors files: tensor by tensor, by position. Times are left out.
//
// A floating-point tensor exceeds `tolerance` when max|a - b| / max|b| does; with tolerance 0 also
// when signs of zeros or the dtypes differ. Integers must be equal. NaN differs from everything. A
// gradient of a dump that holds float32 is measured against at least a floor when its norm is
// smaller: 1e-2 (depth scales), 1e-3 (depth routers), 1e-4 (the rest) of the norm of all gradients,
// spread evenly over its elements, since such sums mostly cancel.
// InvalidArgument or NotFound when there is nothing to compare.
absl::StatusOr<Comparison> Compare(FileSystem& files, const std::string& a, const std::string& b,
                                   double tolerance);

}  // namespace fathom
