#pragma once

#include <cstdint>
#include <vector>

#include "core/dtype.h"
#include "parallel/collective.h"

namespace fathom {

// output[i] = sources[0][i] op sources[1][i] op ..., in this order. bfloat16 is accumulated in
// float32 and rounded once, to the nearest, ties to even. int32 and int64 wrap. `output` may be one
// of the sources. On host memory.
void ReduceInOrder(DType dtype, ReduceOp op, const std::vector<const void*>& sources,
                   int64_t elements, void* output);

}  // namespace fathom
