#include "core/tensor.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace fathom {
namespace {

TEST(Tensor, RowsAndColumnsShareMemory) {
  std::vector<float> data(12);
  std::iota(data.begin(), data.end(), 0.0f);
  const Tensor matrix(data.data(), DType::kFloat32, {3, 4});
  EXPECT_EQ(matrix.row_stride(), 4);
  const Tensor row = matrix.Rows(1, 2);
  EXPECT_EQ(row.shape(), (Shape{1, 4}));
  EXPECT_EQ(row.data<float>()[0], 4);
  const Tensor columns = matrix.Columns(1, 3);
  EXPECT_EQ(columns.shape(), (Shape{3, 2}));
  EXPECT_EQ(columns.row_stride(), 4);
  EXPECT_FALSE(columns.contiguous());
  EXPECT_EQ(columns.Rows(2, 3).data<float>()[0], 9);
  EXPECT_EQ(matrix.Reshape({2, 6}).Rows(1, 2).data<float>()[0], 6);
}

TEST(Tensor, ScalarsAndEmptyTensors) {
  double value = 3;
  const Tensor scalar(&value, DType::kFloat64, {});
  EXPECT_EQ(scalar.elements(), 1);
  EXPECT_EQ(scalar.bytes(), 8);
  EXPECT_TRUE(scalar.contiguous());
  EXPECT_TRUE(Tensor().absent());
  const Tensor empty(&value, DType::kFloat64, {0, 5});
  EXPECT_EQ(empty.elements(), 0);
  EXPECT_FALSE(empty.absent());
}

TEST(TensorDeathTest, MisuseEndsTheProgram) {
  float value = 0;
  const Tensor tensor(&value, DType::kFloat32, {1, 1});
  EXPECT_DEATH(tensor.data<double>(), "the tensor holds float32");
  EXPECT_DEATH(tensor.Rows(0, 2), "rows 0 to 2");
  EXPECT_DEATH(tensor.Reshape({2}), "check failed");
}

}  // namespace
}  // namespace fathom
