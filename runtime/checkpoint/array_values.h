#pragma once

#include <cstdint>
#include <vector>

#include "runtime/checkpoint/named_array.h"

namespace fathom {

// Elements begin to begin + count - 1 of an array as doubles, whatever its dtype and alignment.
// Exact, except for integers beyond 2^53.
void ReadElements(const NamedArray& array, int64_t begin, int64_t count, double* out);

// All elements in a floating-point dtype, each rounded once, to the nearest.
std::vector<char> ConvertArray(const NamedArray& array, DType dtype);

}  // namespace fathom
