#pragma once

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "core/dtype.h"
#include "core/tensor.h"

namespace fathom {

// A tensor in host memory by its name in files. `data` is contiguous and not owned.
struct NamedArray {
  std::string name;
  DType dtype = DType::kFloat32;
  Shape shape;
  const void* data = nullptr;

  int64_t bytes() const { return shape.elements() * SizeOf(dtype); }
};

// Where the data of a list of arrays come from, when their own `data` is not used: the data of
// array `i`, valid until the next call. Arrays are asked for once each, in order.
using ArrayLoader = std::function<absl::StatusOr<const void*>(size_t i)>;

}  // namespace fathom
