#include "runtime/checkpoint/checkpoint.h"

#include <gtest/gtest.h>

#include <cmath>

#include "runtime/testing/failing_files.h"

namespace fathom {
namespace {

class CheckpointTest : public ::testing::Test {
 protected:
  // Arrays that say which step wrote them.
  absl::Status Write(FileSystem& files, int64_t step, float value = 0) {
    const float weights[4] = {float(step), value, -0.0f, 1e-30f};
    const double moments[2] = {0.1 * step, value};
    return WriteCheckpoint(files, output_,
                           {.step = step,
                            .consumed_sequences = 8 * step,
                            .job_text = "name: \"x\"\n\"manifest_checksum\": \"",
                            .weights = {{"w", DType::kFloat32, {2, 2}, weights}},
                            .optimizer = {{"w.first", DType::kFloat64, {2}, moments}},
                            .integers = {{"skipped", -3}},
                            .numbers = {{"scale", 0.1}, {"best", NAN}}});
  }
  // The checkpoint of LATEST holds what Write(step, value) wrote.
  void ExpectLatest(int64_t step, float value = 0) {
    auto latest = ReadLatest(PosixFileSystem(), output_);
    ASSERT_TRUE(latest.ok() && latest->has_value()) << latest.status();
    auto checkpoint = OpenCheckpoint(PosixFileSystem(), **latest);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    EXPECT_EQ(checkpoint->contents.step, step);
    EXPECT_EQ(checkpoint->contents.consumed_sequences, 8 * step);
    EXPECT_EQ(checkpoint->contents.job_text, "name: \"x\"\n\"manifest_checksum\": \"");
    EXPECT_EQ(checkpoint->contents.integers.at("skipped"), -3);
    EXPECT_EQ(checkpoint->contents.numbers.at("scale"), 0.1);
    EXPECT_TRUE(std::isnan(checkpoint->contents.numbers.at("best")));
    ASSERT_EQ(checkpoint->contents.weights.size(), 1);
    ASSERT_EQ(checkpoint->contents.optimizer.size(), 1);
    float weights[4];
    ASSERT_TRUE(checkpoint->weights->Read("w", DType::kFloat32, {2, 2}, weights).ok());
    EXPECT_EQ(weights[0], step);
    EXPECT_EQ(weights[1], value);
    EXPECT_TRUE(std::signbit(weights[2]));
    EXPECT_EQ(weights[3], 1e-30f);
    double moments[2];
    ASSERT_TRUE(checkpoint->optimizer->Read("w.first", DType::kFloat64, {2}, moments).ok());
    EXPECT_EQ(moments[0], 0.1 * step);
  }
  // Step and value of the checkpoint that LATEST names, which must be whole.
  std::pair<float, float> Latest() {
    auto latest = ReadLatest(PosixFileSystem(), output_);
    EXPECT_TRUE(latest.ok() && latest->has_value()) << latest.status();
    if (!latest.ok() || !latest->has_value()) return {};
    auto checkpoint = OpenCheckpoint(PosixFileSystem(), **latest);
    EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
    if (!checkpoint.ok()) return {};
    float weights[4] = {};
    EXPECT_TRUE(checkpoint->weights->Read("w", DType::kFloat32, {2, 2}, weights).ok());
    return {weights[0], weights[1]};
  }
  std::vector<std::string> Names() { return *PosixFileSystem().List(output_); }
  std::string Path(const std::string& name) { return JoinPath(output_, name); }

  const std::string output_ = JoinPath(NewTestDirectory(), "runs/run");
};

TEST_F(CheckpointTest, RoundTrip) {
  auto none = ReadLatest(PosixFileSystem(), output_);
  ASSERT_TRUE(none.ok());
  EXPECT_FALSE(none->has_value());
  ASSERT_TRUE(Write(PosixFileSystem(), 1000).ok());
  ExpectLatest(1000);
  ASSERT_TRUE(Write(PosixFileSystem(), 2000, 5).ok());
  ExpectLatest(2000, 5);
  EXPECT_EQ(Names(), (std::vector<std::string>{"LATEST", "step_00001000", "step_00002000"}));
  EXPECT_EQ(*ReadFile(PosixFileSystem(), Path("LATEST")), "step_00002000\n");
}

TEST_F(CheckpointTest, ReplacesTheSameStep) {
  ASSERT_TRUE(Write(PosixFileSystem(), 7, 1).ok());
  ASSERT_TRUE(Write(PosixFileSystem(), 7, 2).ok());
  ExpectLatest(7, 2);
  EXPECT_EQ(Names(), (std::vector<std::string>{"LATEST", "step_00000007"}));
}

TEST_F(CheckpointTest, AFailureAtAnyMomentLeavesAWholeCheckpoint) {
  for (const int64_t next : {2, 1}) {  // a further step, and the same step again
    ASSERT_TRUE(PosixFileSystem().RemoveAll(output_).ok());
    ASSERT_TRUE(Write(PosixFileSystem(), 1, 10).ok());
    FailingFiles counting(-1);
    ASSERT_TRUE(Write(counting, next, 20).ok());
    ASSERT_GT(counting.operations(), 15);
    for (int64_t fail_at = 0; fail_at < counting.operations(); ++fail_at) {
      ASSERT_TRUE(PosixFileSystem().RemoveAll(output_).ok());
      ASSERT_TRUE(Write(PosixFileSystem(), 1, 10).ok());
      FailingFiles files(fail_at);
      EXPECT_FALSE(Write(files, next, 20).ok());
      const std::pair<float, float> found = Latest();
      const bool old = found == std::pair(1.0f, 10.0f);
      EXPECT_TRUE(old || found == std::pair(float(next), 20.0f)) << fail_at;
      EXPECT_TRUE(old || fail_at >= 10);
      // The next save works and cleans up.
      ASSERT_TRUE(Write(PosixFileSystem(), next, 30).ok()) << fail_at;
      EXPECT_EQ(Latest(), std::pair(float(next), 30.0f));
      EXPECT_EQ(Names().size(), 1 + next) << fail_at;
    }
  }
}

TEST_F(CheckpointTest, EveryDamageIsFound) {
  ASSERT_TRUE(Write(PosixFileSystem(), 1).ok());
  for (const char* name : {"manifest.json", "weights.safetensors", "optimizer.safetensors"}) {
    const std::string path = Path(JoinPath("step_00000001", name));
    const std::string data = *ReadFile(PosixFileSystem(), path);
    const auto expect_error = [&](const std::string& damaged, size_t where) {
      WriteTestFile(path, damaged);
      const absl::Status status = OpenCheckpoint(PosixFileSystem(), Path("step_00000001")).status();
      ASSERT_FALSE(status.ok()) << name << " " << where;
      EXPECT_NE(status.ToString().find(path), std::string::npos) << status;
    };
    for (size_t size = 0; size < data.size(); ++size) expect_error(data.substr(0, size), size);
    for (size_t byte = 0; byte < data.size(); ++byte) {
      std::string damaged = data;
      damaged[byte] ^= 1 << byte % 8;
      expect_error(damaged, byte);
    }
    WriteTestFile(path, data);
  }
  ExpectLatest(1);
}

TEST_F(CheckpointTest, NewerVersionIsNamedBesideOurs) {
  ASSERT_TRUE(Write(PosixFileSystem(), 1).ok());
  const std::string path = Path("step_00000001/manifest.json");
  std::string text = *ReadFile(PosixFileSystem(), path);
  const size_t at = text.find("\"version\": 1");
  ASSERT_NE(at, std::string::npos);
  text[at + 11] = '4';
  WriteTestFile(path, text);
  const absl::Status status = OpenCheckpoint(PosixFileSystem(), Path("step_00000001")).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status));
  EXPECT_NE(status.ToString().find("version 4"), std::string::npos);
  EXPECT_NE(status.ToString().find("version 1"), std::string::npos);
}

TEST_F(CheckpointTest, MissingPiecesAreErrors) {
  EXPECT_TRUE(absl::IsNotFound(OpenCheckpoint(PosixFileSystem(), Path("nowhere")).status()));
  ASSERT_TRUE(Write(PosixFileSystem(), 1).ok());
  ASSERT_TRUE(PosixFileSystem().RemoveAll(Path("step_00000001/optimizer.safetensors")).ok());
  EXPECT_FALSE(OpenCheckpoint(PosixFileSystem(), Path("step_00000001")).ok());
  ASSERT_TRUE(PosixFileSystem().RemoveAll(Path("step_00000001")).ok());
  EXPECT_TRUE(absl::IsDataLoss(ReadLatest(PosixFileSystem(), output_).status()));
  for (const char* latest : {"", "\n", "../other", "step_1", "step_0000000a", "step_00000001 "}) {
    WriteTestFile(Path("LATEST"), latest);
    EXPECT_TRUE(absl::IsDataLoss(ReadLatest(PosixFileSystem(), output_).status())) << latest;
  }
}

TEST_F(CheckpointTest, Retention) {
  for (int64_t step = 10; step <= 100; step += 10) {
    ASSERT_TRUE(Write(PosixFileSystem(), step).ok());
  }
  ASSERT_TRUE(RemoveOldCheckpoints(PosixFileSystem(), output_, {}).ok());
  EXPECT_EQ(Names().size(), 11);
  CheckpointConfig config;
  config.keep = 2;
  config.keep_every = 40;
  ASSERT_TRUE(RemoveOldCheckpoints(PosixFileSystem(), output_, config).ok());
  EXPECT_EQ(Names(), (std::vector<std::string>{"LATEST", "step_00000040", "step_00000080",
                                               "step_00000090", "step_00000100"}));
  // After a resume from an old one, LATEST is not the newest.
  WriteTestFile(Path("LATEST"), "step_00000040\n");
  config.keep = 1;
  config.keep_every = 0;
  ASSERT_TRUE(RemoveOldCheckpoints(PosixFileSystem(), output_, config).ok());
  EXPECT_EQ(Names(), (std::vector<std::string>{"LATEST", "step_00000040", "step_00000100"}));
}

}  // namespace
}  // namespace fathom
