#pragma once

#include <cstdint>
#include <vector>

#include "core/tensor.h"
#include "parallel/element_range.h"

// Where a rank's parameters stand in the buffers that hold all masters, weights and gradients, so
// that what is reduced together, and what one data rank updates, is contiguous. Pure arithmetic:
// all ranks of a stage come to the same result.
namespace fathom {

enum class UnitRole {
  kMatrices,  // hidden matrices that lie one behind the other: one, or those of a fused product
  kTable,     // embedding or head
  kVectors,   // norms, routers, scales: held by every tensor rank
  kCounts,    // what is counted, not trained: the gradients' place holds sums of whole numbers
};

// Parameters that stay together.
struct LayoutUnit {
  UnitRole role = UnitRole::kVectors;
  bool of_expert = false;         // see ParameterLayoutOptions
  size_t first_parameter = 0;     // place in the parameter table
  std::vector<int64_t> elements;  // that this rank holds of each
  std::vector<Shape> matrices;    // kMatrices: the shapes of the whole matrices
};

struct ParameterLayoutOptions {
  // Ranks that hold copies of a parameter, and ranks that hold its parts.
  int data_ranks = 1;
  int tensor_ranks = 1;
  // The same for the matrices of routed experts.
  int expert_replicas = 1;
  int expert_tensor_ranks = 1;
  bool muon = true;  // hidden matrices are orthogonalised, so each is owned by one rank
  int64_t newton_schulz_steps = 5;             // for the cost that owners are balanced by
  int64_t bucket_elements = int64_t{1} << 24;  // of the matrices that are reduced together
};

// Parameters whose gradients are reduced over their replicas, the ranks that hold copies, in one
// operation.
struct ParameterBucket {
  UnitRole role = UnitRole::kVectors;
  bool of_expert = false;
  ElementRange elements;  // of the common buffers
  // Elements that each replica owns, one stretch after the other: whole matrices when they are
  // orthogonalised, else ranges of equal size.
  std::vector<int64_t> counts;
  // Complete once the gradients of this parameter and of all that stand after it in the table are.
  size_t first_parameter = 0;

  ElementRange OwnedBy(int replica) const;
};

// The rank that orthogonalises a matrix, by its place among the replicas, which for all but the
// experts are the data ranks, and among those that hold the parts.
struct MatrixOwner {
  int data = -1;  // -1: nobody does, since the parameter is no such matrix
  int tensor = -1;
};

struct ParameterLayout {
  std::vector<int64_t> offsets;          // of each parameter, in elements
  int64_t elements = 0;                  // of the common buffers
  std::vector<ParameterBucket> buckets;  // in the order in which backward completes them
  std::vector<MatrixOwner> owners;       // of each parameter
};

// `units` in the order of the table. Units start at multiples of 64 elements.
ParameterLayout MakeParameterLayout(const std::vector<LayoutUnit>& units,
                                    const ParameterLayoutOptions& options);

}  // namespace fathom
