#include "runtime/dump.h"

#include <gtest/gtest.h>

#include "core/cpu_device.h"
#include "kernels/elementwise.h"
#include "runtime/checkpoint/safetensors.h"
#include "runtime/testing/failing_files.h"

namespace fathom {
namespace {

constexpr int64_t kLength = 4;

// A matrix and a scalar, two sparse layers around a dense one, two micro-batches of two sequences:
// nothing is computed, so that every number in the files is known.
class DumpTest : public ::testing::Test {
 protected:
  DumpTest() : device_(1), stream_(device_.NewStream()), arena_(device_, 1 << 16) {
    table_.Add({"m", {2, 3}, ParameterRole::kMatrix});
    table_.Add({"s", {}, ParameterRole::kScale});
    EXPECT_TRUE(table_.Allocate(device_, DType::kFloat64, /*with_gradients=*/true).ok());
    optimizer_ = *Optimizer::Create({}, {}, table_, *groups_, device_, *stream_);
  }

  void FillAll(double weight, double gradient) {
    for (const Parameter& parameter : table_.all()) {
      Launch(*stream_, Fill{.value = weight, .y = parameter.weight});
      Launch(*stream_, Fill{.value = gradient, .y = parameter.gradient});
    }
  }

  Tensor Rows(const std::vector<int32_t>& rows) {
    const Tensor tensor = arena_.New(DType::kInt32, {static_cast<int64_t>(rows.size())});
    stream_->CopyToDevice(rows.data(), tensor);
    return tensor;
  }

  void AddMicroBatch(StepDump& dump, int64_t micro_batch, int32_t first_token,
                     const std::vector<int32_t>& layer_0, const std::vector<int32_t>& layer_2,
                     bool packed = false) {
    HostBatch host = HostBatch::WholeSequences(2, kLength);
    for (size_t i = 0; i < host.tokens.size(); ++i) {
      host.tokens[i] = first_token + i;
      host.labels[i] = i == 3 ? -1 : first_token + i + 1;
    }
    if (packed) host.segments = {0, 3, 4, 8};
    Pass pass(*stream_, arena_);
    pass.sequences = 2;
    pass.selections = {{.layer = 0, .index = Rows(layer_0), .adjusted_logits = {}},
                       {.layer = 2, .index = Rows(layer_2), .adjusted_logits = {}}};
    dump.AddTokens(micro_batch, host);
    dump.AddSelections(micro_batch, pass);
  }

  void WriteDump(FileSystem& files, const std::string& directory, bool packed = false) {
    const BatchShare share{.global_batch = 4, .micro_batch = 2};
    StepDump dump(files, directory, share, kLength, *groups_, *stream_);
    FillAll(1, 0);
    ASSERT_TRUE(dump.Begin(table_, *optimizer_).ok());
    AddMicroBatch(dump, 0, 10, {0, 2, 5, 7}, {3, 4}, packed);
    AddMicroBatch(dump, 1, 20, {1, 2, 4, 5}, {0, 6});
    FillAll(1, 2);
    ASSERT_TRUE(dump.AddGradients(table_).ok());
    FillAll(3, 2);
    ASSERT_TRUE(dump.Finish(table_, R"({"step": 7})").ok());
  }

  template <class T>
  static std::vector<T> Read(const std::string& directory, const std::string& file,
                             const std::string& name, const Shape& shape) {
    const auto opened = SafetensorsFile::Open(PosixFileSystem(), JoinPath(directory, file));
    EXPECT_TRUE(opened.ok()) << opened.status();
    std::vector<T> values(shape.elements());
    if (!opened.ok()) return values;
    const absl::Status status = (*opened)->Read(name, DTypeOf<T>, shape, values.data());
    EXPECT_TRUE(status.ok()) << status;
    return values;
  }

  CpuDevice device_;
  std::unique_ptr<Stream> stream_;
  Arena arena_;
  ParameterTable table_;
  std::unique_ptr<RankGroups> groups_ = RankGroups::Alone();
  std::unique_ptr<Optimizer> optimizer_;
};

TEST_F(DumpTest, HoldsTheStep) {
  const std::string directory = JoinPath(NewTestDirectory(), "dump");
  WriteDump(PosixFileSystem(), directory);
  EXPECT_EQ(*PosixFileSystem().List(directory),
            (std::vector<std::string>{"gradients.safetensors", "optimizer_before.safetensors",
                                      "selection.safetensors", "step.json", "tokens.safetensors",
                                      "weights_after.safetensors", "weights_before.safetensors"}));
  EXPECT_FALSE(PosixFileSystem().Exists(directory + ".tmp"));
  EXPECT_EQ(*ReadFile(PosixFileSystem(), JoinPath(directory, "step.json")), "{\"step\": 7}\n");

  using Integers = std::vector<int64_t>;
  EXPECT_EQ(Read<int64_t>(directory, "tokens.safetensors", "input_ids", {4, kLength}),
            (Integers{10, 11, 12, 13, 14, 15, 16, 17, 20, 21, 22, 23, 24, 25, 26, 27}));
  EXPECT_EQ(Read<int64_t>(directory, "tokens.safetensors", "labels", {4, kLength}),
            (Integers{11, 12, 13, -100, 15, 16, 17, 18, 21, 22, 23, -100, 25, 26, 27, 28}));
  EXPECT_EQ(
      Read<int64_t>(directory, "selection.safetensors", "model.layers.0.depth_selection", {4, 2}),
      (Integers{0, 2, 1, 3, 1, 2, 0, 1}));
  EXPECT_EQ(
      Read<int64_t>(directory, "selection.safetensors", "model.layers.2.depth_selection", {4, 1}),
      (Integers{3, 0, 0, 2}));

  using Numbers = std::vector<double>;
  EXPECT_EQ(Read<double>(directory, "weights_before.safetensors", "m", {2, 3}), Numbers(6, 1));
  EXPECT_EQ(Read<double>(directory, "gradients.safetensors", "m", {2, 3}), Numbers(6, 2));
  EXPECT_EQ(Read<double>(directory, "weights_after.safetensors", "s", {}), Numbers(1, 3));
  EXPECT_EQ(Read<double>(directory, "optimizer_before.safetensors", "m.momentum", {2, 3}),
            Numbers(6, 0));
  EXPECT_EQ(Read<double>(directory, "optimizer_before.safetensors", "s.second", {}), Numbers(1, 0));
  const auto state = *SafetensorsFile::Open(PosixFileSystem(),
                                            JoinPath(directory, "optimizer_before.safetensors"));
  EXPECT_EQ(state->tensors().size(), 3);
}

TEST_F(DumpTest, DocumentsAreNumberedWithinTheirSequence) {
  const std::string directory = JoinPath(NewTestDirectory(), "dump");
  WriteDump(PosixFileSystem(), directory, /*packed=*/true);
  EXPECT_EQ(Read<int64_t>(directory, "tokens.safetensors", "document_ids", {4, kLength}),
            (std::vector<int64_t>{0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}));
  const std::string whole = JoinPath(NewTestDirectory(), "whole");
  WriteDump(PosixFileSystem(), whole);
  EXPECT_EQ((*SafetensorsFile::Open(PosixFileSystem(), JoinPath(whole, "tokens.safetensors")))
                ->Find("document_ids"),
            nullptr);
}

TEST_F(DumpTest, OnlyADumpIsReplaced) {
  FileSystem& files = PosixFileSystem();
  const std::string directory = NewTestDirectory();
  EXPECT_TRUE(StepDump::CheckDirectory(files, JoinPath(directory, "new")).ok());
  EXPECT_TRUE(StepDump::CheckDirectory(files, directory).ok());
  WriteDump(files, directory);
  EXPECT_TRUE(StepDump::CheckDirectory(files, directory).ok());
  WriteDump(files, directory);
  EXPECT_EQ(files.List(directory)->size(), 7);
  WriteTestFile(JoinPath(directory, "mine.txt"), "");
  const absl::Status refused = StepDump::CheckDirectory(files, directory);
  EXPECT_TRUE(absl::IsAlreadyExists(refused));
  EXPECT_EQ(refused.message(),
            "debug.dump_dir " + directory + " holds mine.txt, but it must be new, empty or a dump");
  EXPECT_TRUE(
      absl::IsAlreadyExists(StepDump::CheckDirectory(files, JoinPath(directory, "mine.txt"))));
}

TEST_F(DumpTest, ADumpThatFailsHasNotItsName) {
  const std::string directory = JoinPath(NewTestDirectory(), "dump");
  FailingFiles counting(-1);
  WriteDump(counting, directory);
  ASSERT_TRUE(PosixFileSystem().RemoveAll(directory).ok());
  for (int64_t fail_at = 0; fail_at < counting.operations(); ++fail_at) {
    FailingFiles files(fail_at);
    const BatchShare share{.global_batch = 4, .micro_batch = 2};
    StepDump dump(files, directory, share, kLength, *groups_, *stream_);
    absl::Status status = dump.Begin(table_, *optimizer_);
    AddMicroBatch(dump, 0, 10, {0, 2, 5, 7}, {3, 4});
    if (status.ok()) status = dump.AddGradients(table_);
    if (status.ok()) status = dump.Finish(table_, "{}");
    EXPECT_FALSE(status.ok()) << fail_at;
    EXPECT_FALSE(PosixFileSystem().Exists(directory)) << fail_at;
  }
}

}  // namespace
}  // namespace fathom
