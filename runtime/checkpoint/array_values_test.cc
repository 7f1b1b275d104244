#include "runtime/checkpoint/array_values.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace fathom {
namespace {

// Reads `values` through an array whose data begins at an odd byte.
template <class T>
std::vector<double> ReadUnaligned(DType dtype, const std::vector<T>& values, int64_t begin,
                                  int64_t count) {
  std::vector<char> storage(values.size() * sizeof(T) + 1);
  std::memcpy(storage.data() + 1, values.data(), values.size() * sizeof(T));
  std::vector<double> out(count);
  ReadElements({.name = "x",
                .dtype = dtype,
                .shape = {static_cast<int64_t>(values.size())},
                .data = storage.data() + 1},
               begin, count, out.data());
  return out;
}

TEST(ArrayValuesTest, ReadsEveryDtype) {
  EXPECT_EQ(ReadUnaligned<float>(DType::kFloat32, {1, 0.1f, -3}, 1, 2),
            (std::vector<double>{0.1f, -3}));
  EXPECT_EQ(ReadUnaligned<double>(DType::kFloat64, {0.1, 1e300}, 0, 2),
            (std::vector<double>{0.1, 1e300}));
  EXPECT_EQ(ReadUnaligned<int32_t>(DType::kInt32, {7, -2147483647 - 1}, 0, 2),
            (std::vector<double>{7, -2147483648.0}));
  EXPECT_EQ(ReadUnaligned<int64_t>(DType::kInt64, {int64_t{1} << 53, -5}, 0, 2),
            (std::vector<double>{9007199254740992.0, -5}));
  // Sign, eight bits of exponent, seven of fraction.
  EXPECT_EQ(ReadUnaligned<uint16_t>(DType::kBFloat16, {0x3f80, 0xc049, 0x0000, 0x3dcd}, 0, 4),
            (std::vector<double>{1, -3.140625, 0, 0.10009765625}));
}

}  // namespace
}  // namespace fathom
