#include "runtime/checkpoint/open_weights.h"

#include <gtest/gtest.h>

#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/safetensors.h"
#include "runtime/testing/failing_files.h"

namespace fathom {
namespace {

// Four numbers under the name "w".
class OpenWeightsTest : public ::testing::Test {
 protected:
  std::vector<NamedArray> Weights(float first) {
    values_[0] = first;
    return {{.name = "w", .dtype = DType::kFloat32, .shape = {2, 2}, .data = values_}};
  }

  void WriteRun(const std::string& run) {
    for (int64_t step : {5, 10}) {
      ASSERT_TRUE(WriteCheckpoint(files_, run,
                                  {.step = step,
                                   .consumed_sequences = 0,
                                   .job_text = "",
                                   .weights = Weights(static_cast<float>(step)),
                                   .optimizer = {},
                                   .integers = {},
                                   .numbers = {}})
                      .ok());
    }
  }

  // The first weight in `path`.
  float First(const std::string& path) {
    const auto file = OpenWeights(files_, path);
    EXPECT_TRUE(file.ok()) << file.status();
    float values[4] = {};
    if (file.ok()) {
      EXPECT_TRUE((*file)->Read("w", DType::kFloat32, {2, 2}, values).ok());
    }
    return values[0];
  }

  FileSystem& files_ = PosixFileSystem();
  float values_[4] = {};
  std::string directory_ = NewTestDirectory();
};

TEST_F(OpenWeightsTest, AFileAndADirectoryWithAModel) {
  const std::string path = JoinPath(directory_, kModelFile);
  ASSERT_TRUE(WriteSafetensorsFile(files_, path, Weights(3), {}).ok());
  EXPECT_EQ(First(path), 3);
  EXPECT_EQ(First(directory_), 3);
}

TEST_F(OpenWeightsTest, ACheckpointAndItsRun) {
  WriteRun(directory_);
  EXPECT_EQ(First(JoinPath(directory_, "step_00000005")), 5);
  EXPECT_EQ(First(directory_), 10);
  EXPECT_EQ(*FindCheckpoint(files_, directory_), JoinPath(directory_, "step_00000010"));
}

TEST_F(OpenWeightsTest, NothingThere) {
  const auto file = OpenWeights(files_, directory_);
  EXPECT_TRUE(absl::IsNotFound(file.status()));
  EXPECT_EQ(file.status().message(),
            directory_ +
                " holds no weights: a safetensors file, a checkpoint or a directory with "
                "model.safetensors is needed");
  EXPECT_TRUE(absl::IsNotFound(OpenWeights(files_, directory_ + "/missing").status()));
}

TEST_F(OpenWeightsTest, ADamagedCheckpointIsNotUsed) {
  WriteRun(directory_);
  const std::string path = JoinPath(directory_, "step_00000010/weights_00000.safetensors");
  std::string contents = *ReadFile(files_, path);
  contents.back() ^= 1;
  WriteTestFile(path, contents);
  const auto source = OpenWeights(files_, directory_);
  ASSERT_TRUE(source.ok()) << source.status();
  float values[4];
  const absl::Status status = (*source)->Read("w", DType::kFloat32, {2, 2}, values);
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
}

}  // namespace
}  // namespace fathom
