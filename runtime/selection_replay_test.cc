#include "runtime/selection_replay.h"

#include <gtest/gtest.h>

#include "core/cpu_device.h"
#include "runtime/checkpoint/safetensors.h"
#include "runtime/testing/failing_files.h"

namespace fathom {
namespace {

// A dense layer, then one on half of the tokens; L = 4, two micro-batches of two sequences.
Job SmallJob() {
  Job job;
  job.model.plan.layers = {{.spec = {LayerKind::kDense, 1}}, {.spec = {LayerKind::kSparse, 2}}};
  job.train.sequence_length = 4;
  job.train.micro_batch = 2;
  job.train.global_batch = 4;
  return job;
}

class SelectionReplayTest : public ::testing::Test {
 protected:
  SelectionReplayTest() : device_(1), stream_(device_.NewStream()), arena_(device_, 1 << 16) {}

  // Writes `values` as the tensor `name`, and reads the file.
  absl::StatusOr<std::unique_ptr<SelectionReplay>> ReadBack(const std::vector<int64_t>& values,
                                                            const Shape& shape,
                                                            const std::string& name) {
    const std::vector<NamedArray> arrays = {
        {.name = name, .dtype = DType::kInt64, .shape = shape, .data = values.data()}};
    EXPECT_TRUE(WriteSafetensorsFile(PosixFileSystem(), path_, arrays, {}).ok());
    return SelectionReplay::Read(PosixFileSystem(), path_, SmallJob());
  }

  std::string Refusal(const std::vector<int64_t>& values, const Shape& shape,
                      const std::string& name = kName) {
    const auto replay = ReadBack(values, shape, name);
    EXPECT_TRUE(absl::IsInvalidArgument(replay.status()));
    const std::string message(replay.status().message());
    EXPECT_EQ(message.substr(0, path_.size()), path_);
    return message.substr(std::min(message.size(), path_.size()));
  }

  std::vector<int32_t> UploadedRows(const SelectionReplay& replay, int64_t micro_batch) {
    const ReplayedSelection selection = replay.Upload(micro_batch, *stream_, arena_);
    EXPECT_EQ(selection.size(), 2);
    EXPECT_TRUE(selection[0].absent());
    const Tensor& rows = selection[1];
    return {rows.data<int32_t>(), rows.data<int32_t>() + rows.elements()};
  }

  static constexpr char kName[] = "model.layers.1.depth_selection";
  CpuDevice device_;
  std::unique_ptr<Stream> stream_;
  Arena arena_;
  std::string directory_ = NewTestDirectory();
  std::string path_ = JoinPath(directory_, "selection.safetensors");
};

TEST_F(SelectionReplayTest, PositionsBecomeRowsOfTheirMicroBatch) {
  const auto replay = ReadBack({0, 1, 2, 3, 0, 3, 1, 2}, {4, 2}, kName);
  ASSERT_TRUE(replay.ok()) << replay.status();
  EXPECT_EQ(UploadedRows(**replay, 0), (std::vector<int32_t>{0, 1, 6, 7}));
  EXPECT_EQ(UploadedRows(**replay, 1), (std::vector<int32_t>{0, 3, 5, 6}));
  // The directory of a dump means the same file.
  EXPECT_TRUE(SelectionReplay::Read(PosixFileSystem(), directory_, SmallJob()).ok());
}

TEST_F(SelectionReplayTest, CountsWhatTheModelWouldNotHaveSelected) {
  const auto replay = ReadBack({0, 1, 2, 3, 0, 3, 1, 2}, {4, 2}, kName);
  ASSERT_TRUE(replay.ok());
  // Of the first sequence 2 and 3 are the model's own; of the second 0 and, of a tie of 1, 2 and 3,
  // 1.
  const std::vector<float> logits = {1, 3.5, 4, 4.5, 9, 2, 2, 2};
  Pass pass(*stream_, arena_);
  const Tensor adjusted = arena_.New(DType::kFloat32, {8});
  pass.selections = {{.layer = 1, .index = {}, .adjusted_logits = adjusted}};
  stream_->CopyToDevice(logits.data(), adjusted);
  SelectionReplay::Flips flips;
  ASSERT_TRUE((*replay)->CountFlips(pass, 0, &flips).ok());
  EXPECT_EQ(flips.replayed, 4);
  EXPECT_EQ(flips.tokens, 4);
  EXPECT_EQ(flips.margin, 3);
  // Of the second micro-batch {0, 3} and {1, 2} are replayed.
  flips = {};
  ASSERT_TRUE((*replay)->CountFlips(pass, 1, &flips).ok());
  EXPECT_EQ(flips.tokens, 2);
  EXPECT_EQ(flips.margin, 3);
}

TEST_F(SelectionReplayTest, RefusesWhatDoesNotFit) {
  EXPECT_EQ(Refusal({0, 1, 2, 3}, {2, 2}),
            ": model.layers.1.depth_selection is int64 [2, 2], but the job needs int64 [4, 2] "
            "(train.global_batch sequences, and what the layer selects of each)");
  EXPECT_EQ(Refusal({0, 1, 2, 3, 3, 0, 1, 2}, {4, 2}),
            ": model.layers.1.depth_selection selects position 0 in sequence 2, but the positions "
            "of a sequence must ascend from 0 to 3");
  EXPECT_EQ(Refusal({0, 1, 2, 4, 0, 3, 1, 2}, {4, 2}),
            ": model.layers.1.depth_selection selects position 4 in sequence 1, but the positions "
            "of a sequence must ascend from 0 to 3");
  EXPECT_EQ(Refusal({0, 1, 2, 3, 0, 3, 1, 2}, {4, 2}, "model.layers.0.depth_selection"),
            " has no tensor model.layers.1.depth_selection, which the job's model needs");
}

TEST_F(SelectionReplayTest, RefusesLayersThatTheModelHasNot) {
  const std::vector<int64_t> values = {0, 1, 2, 3, 0, 3, 1, 2};
  const auto array = [&](const std::string& name) {
    return NamedArray{name, DType::kInt64, {4, 2}, values.data()};
  };
  ASSERT_TRUE(WriteSafetensorsFile(PosixFileSystem(), path_,
                                   {array(kName), array("model.layers.2.depth_selection")}, {})
                  .ok());
  EXPECT_EQ(SelectionReplay::Read(PosixFileSystem(), path_, SmallJob()).status().message(),
            path_ +
                " has model.layers.2.depth_selection, which the job's model has no such layer "
                "for");
}

}  // namespace
}  // namespace fathom
