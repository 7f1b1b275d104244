#include "runtime/run_state.h"

#include <gtest/gtest.h>

#include "core/cpu_device.h"
#include "runtime/checkpoint/safetensors.h"
#include "runtime/testing/failing_files.h"

namespace fathom {
namespace {

// A matrix and a scalar in float64.
class RunStateTest : public ::testing::Test {
 protected:
  RunStateTest() : device_(1), stream_(device_.NewStream()) {
    table_.Add({"m", {2, 2}, ParameterRole::kMatrix});
    table_.Add({"s", {}, ParameterRole::kScale});
    EXPECT_TRUE(table_.Allocate(device_, DType::kFloat64, /*with_gradients=*/true).ok());
  }

  absl::Status Load(const std::vector<NamedArray>& arrays) {
    EXPECT_TRUE(WriteSafetensorsFile(PosixFileSystem(), path_, arrays, {}).ok());
    const auto file = SafetensorsFile::Open(PosixFileSystem(), path_);
    EXPECT_TRUE(file.ok()) << file.status();
    return LoadWeights(**file, {"m", "s"}, table_, *stream_);
  }

  std::vector<double> Weight(const std::string& name) {
    HostTensors tensors;
    EXPECT_TRUE(GatherTensors(WeightPieces(table_, *groups_), *groups_, *stream_, &tensors).ok());
    for (const NamedArray& array : tensors.arrays()) {
      const double* data = static_cast<const double*>(array.data);
      if (array.name == name) return {data, data + array.shape.elements()};
    }
    return {};
  }

  CpuDevice device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<RankGroups> groups_ = RankGroups::Alone();
  ParameterTable table_;
  std::string path_ = JoinPath(NewTestDirectory(), "weights.safetensors");
};

TEST_F(RunStateTest, WeightsOfEveryFloatingType) {
  // 1, -2.5, 0.0625 and 3 as the upper halves of floats; a scalar may be [1].
  const uint16_t bfloats[4] = {0x3f80, 0xc020, 0x3d80, 0x4040};
  const float scale = 0.1f;
  const absl::Status status =
      Load({{.name = "m", .dtype = DType::kBFloat16, .shape = {2, 2}, .data = bfloats},
            {.name = "s", .dtype = DType::kFloat32, .shape = {1}, .data = &scale}});
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(Weight("m"), (std::vector<double>{1, -2.5, 0.0625, 3}));
  EXPECT_EQ(Weight("s"), std::vector<double>{0.1f});
}

TEST_F(RunStateTest, RefusalsNameFileAndTensor) {
  const double numbers[5] = {1, 2, 3, 4, 5};
  const int64_t integers[4] = {1, 2, 3, 4};
  const double nan[4] = {1, 2, std::numeric_limits<double>::quiet_NaN(), 4};
  const NamedArray s{"s", DType::kFloat64, {}, numbers};
  const NamedArray m{"m", DType::kFloat64, {2, 2}, numbers};
  const auto refusal = [&](const std::vector<NamedArray>& arrays) {
    const absl::Status status = Load(arrays);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    return std::string(status.message());
  };
  EXPECT_EQ(refusal({s}), path_ + " has no tensor m, which the job's model needs");
  EXPECT_EQ(refusal({m, s, {"x", DType::kFloat64, {5}, numbers}}),
            path_ + " has a tensor x, which the job's model has not");
  EXPECT_EQ(refusal({s, {"m", DType::kFloat64, {4}, numbers}}),
            path_ + ": m is [4], the job's model has [2, 2]");
  EXPECT_EQ(refusal({s, {"m", DType::kInt64, {2, 2}, integers}}),
            path_ + ": m is int64; float32, float64 or bfloat16 is needed");
  EXPECT_EQ(refusal({s, {"m", DType::kFloat64, {2, 2}, nan}}),
            path_ + ": element 2 of m is nan; weights must be finite numbers");
}

}  // namespace
}  // namespace fathom
