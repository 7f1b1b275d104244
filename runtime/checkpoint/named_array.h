#pragma once

#include <string>

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

}  // namespace fathom
