#pragma once

#include <string_view>

#include "kernels/launch.h"

namespace fathom {

// How the rows of a mixture-of-experts layer travel to their experts and back. Row i of N has
// `routed` assignments (i, j), one for each expert that it chose; P of them lie in the order of
// their experts, where grouped products (grouped_matmul.h) find the rows of one expert together.

// The order of all assignments by (expert, row). Of `row` the first count * routed are written.
struct SortByExpert {
  static constexpr std::string_view kName = "sort_by_expert";
  Tensor experts;  // [N, routed] int32
  Tensor count;    // [1] int32 or absent
  Tensor row;      // [N * routed] int32: the row of the assignment at each place
  Tensor slot;     // [N, routed] int32: the place of assignment (i, j)
  Cost cost() const;
};
void RunOnCpu(const SortByExpert& operation, CpuStream& stream);

// y_i += sum_j weights_ij * x[slot_ij], j ascending, summed in stat and rounded once.
struct CombineExperts {
  static constexpr std::string_view kName = "combine_experts";
  Tensor x;        // [P, d] T, assignments in the order of `slot`
  Tensor slot;     // [N, routed] int32
  Tensor weights;  // [N, routed] stat, or absent for 1
  Tensor y;        // [N, d] T, +=
  Tensor count;    // [1] int32 or absent
  Cost cost() const;
};
void RunOnCpu(const CombineExperts& operation, CpuStream& stream);

// dx[slot_ij] = weights_ij * dy_i, d_weights_ij = dy_i . x[slot_ij], a sum in a fixed order. Rows
// of dx that no slot names stay.
struct CombineExpertsBackward {
  static constexpr std::string_view kName = "combine_experts_backward";
  Tensor dy;         // [N, d] T
  Tensor x;          // [P, d] T, as in forward; not used without d_weights
  Tensor slot;       // [N, routed] int32, distinct
  Tensor weights;    // [N, routed] stat, or absent for 1
  Tensor dx;         // [P, d] T; not x
  Tensor d_weights;  // [N, routed] stat, or absent
  Tensor count;      // [1] int32 or absent
  Cost cost() const;
};
void RunOnCpu(const CombineExpertsBackward& operation, CpuStream& stream);

// How many of the rows begin to end - 1 are in use when `count` of all are.
struct RowsInWindow {
  static constexpr std::string_view kName = "rows_in_window";
  Tensor count;  // [1] int32: of the whole
  int64_t begin = 0;
  int64_t end = 0;
  Tensor window_count;  // [1] int32
  Cost cost() const;
};
void RunOnCpu(const RowsInWindow& operation, CpuStream& stream);

// Rows that S sources sent for E experts arrive source by source, those of one source expert by
// expert. Both permutations between this order and the one expert by expert, in each expert source
// by source; of each as many are written as there are rows.
struct ExpertMajorOrder {
  static constexpr std::string_view kName = "expert_major_order";
  Tensor counts;           // [S, E] int32: rows from a source for an expert
  Tensor to_expert_major;  // [M] int32: which received row is row p, expert by expert
  Tensor to_source_major;  // [M] int32: which of the rows expert by expert is received row p
  Cost cost() const;
};
void RunOnCpu(const ExpertMajorOrder& operation, CpuStream& stream);

}  // namespace fathom
