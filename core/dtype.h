#pragma once

#include <cstdint>
#include <string_view>

#include "core/bfloat16.h"

namespace fathom {

enum class DType : uint8_t { kFloat32, kFloat64, kBFloat16, kInt32, kInt64 };

// Bytes of one element.
int64_t SizeOf(DType dtype);

// "float32", "float64", "bfloat16", "int32", "int64".
std::string_view Name(DType dtype);

// The C++ type of a dtype, backwards: DTypeOf<float> is kFloat32.
template <class T>
inline constexpr DType DTypeOf = [] {
  static_assert(sizeof(T) == 0, "no dtype for this type");
  return DType::kFloat32;
}();
template <>
inline constexpr DType DTypeOf<float> = DType::kFloat32;
template <>
inline constexpr DType DTypeOf<double> = DType::kFloat64;
template <>
inline constexpr DType DTypeOf<BFloat16> = DType::kBFloat16;
template <>
inline constexpr DType DTypeOf<int32_t> = DType::kInt32;
template <>
inline constexpr DType DTypeOf<int64_t> = DType::kInt64;

// The dtype of statistics, scores, logits and sums beside values of `dtype`: float64 beside
// float64, float32 beside float32 and bfloat16.
constexpr DType StatisticsDType(DType dtype) {
  return dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
}

}  // namespace fathom
