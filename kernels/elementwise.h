#pragma once

#include <string_view>

#include "kernels/launch.h"

namespace fathom {

// y = value, in every element. Any dtype; rows of any stride.
struct Fill {
  static constexpr std::string_view kName = "fill";
  double value = 0;
  Tensor y;
  Cost cost() const;
};
void RunOnCpu(const Fill& operation, CpuStream& stream);

// y = x, converting between floating dtypes. Same shape; rows of any stride.
struct Copy {
  static constexpr std::string_view kName = "copy";
  Tensor x;
  Tensor y;
  Cost cost() const;
};
void RunOnCpu(const Copy& operation, CpuStream& stream);

// y = a * x + b * y, T, same shape; y may be x. When b is 0 the old contents are not read.
struct Axpby {
  static constexpr std::string_view kName = "axpby";
  double a = 1;
  Tensor x;
  double b = 1;
  Tensor y;
  Cost cost() const;
};
void RunOnCpu(const Axpby& operation, CpuStream& stream);

// y_i = row index_i of a tensor of which x holds the N rows from first_row on; 0 where x does not
// hold that row, so that windows that share out the rows of a tensor give parts of its gather that
// add up to it.
struct GatherRows {
  static constexpr std::string_view kName = "gather_rows";
  Tensor x;  // [N, d] T
  int64_t first_row = 0;
  Tensor index;  // [m] int32
  Tensor y;      // [m, d] T
  Tensor count;
  Cost cost() const;
};
void RunOnCpu(const GatherRows& operation, CpuStream& stream);

// Row index_i = x_i in a tensor of which y holds the N rows from first_row on. Where y does not
// hold that row, x_i is not used; other rows of y stay.
struct ScatterRows {
  static constexpr std::string_view kName = "scatter_rows";
  Tensor x;      // [m, d] T
  Tensor index;  // [m] int32
  Tensor y;      // [N, d] T
  int64_t first_row = 0;
  Tensor count;
  Cost cost() const;
};
void RunOnCpu(const ScatterRows& operation, CpuStream& stream);

// sum += factor * sum_i x_i, in double, in a fixed order.
struct Sum {
  static constexpr std::string_view kName = "sum";
  Tensor x;  // any shape, contiguous, T
  double factor = 1;
  Tensor sum;  // [1] float64, +=
  Cost cost() const;
};
void RunOnCpu(const Sum& operation, CpuStream& stream);

// sum += sum_i x_i^2, in double, in a fixed order.
struct SumOfSquares {
  static constexpr std::string_view kName = "sum_of_squares";
  Tensor x;    // any shape, contiguous, T
  Tensor sum;  // [1] float64, +=
  Cost cost() const;
};
void RunOnCpu(const SumOfSquares& operation, CpuStream& stream);

}  // namespace fathom
