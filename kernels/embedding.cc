#include "kernels/embedding.h"

#include "kernels/cost.h"

namespace fathom {

// As if the table had every token: only the device knows which tokens there are.
Cost Embedding::cost() const { return {.bytes = tokens.bytes() + 2.0 * x.bytes()}; }

Cost EmbeddingBackward::cost() const {
  return {.vector_flops = 1.0 * dx.elements(), .bytes = tokens.bytes() + 2.0 * dx.bytes()};
}

}  // namespace fathom
