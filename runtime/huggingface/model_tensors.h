#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/job.h"
#include "runtime/checkpoint/named_array.h"

namespace fathom {

// Tensors in files, by name, read one at a time.
struct TensorList {
  std::vector<NamedArray> arrays;
  // The data of array `i`, whole and contiguous, valid until the next call; in any order. Empty:
  // the arrays' own `data`.
  ArrayLoader load;
  // Whatever the arrays and `load` point into.
  std::shared_ptr<const void> owner;

  absl::StatusOr<const void*> Load(size_t i) const;
};

// The tensors of a model, in order of depth, out of a list that has them all and nothing else.
// InvalidArgument, naming tensor and `from`, for one that is missing or of another shape, that
// holds integers, or that the model has not. Of tensors without elements nothing is asked.
absl::StatusOr<TensorList> SelectModelTensors(const ModelConfig& model, const TensorList& list,
                                              const std::string& from);

}  // namespace fathom
