#include "runtime/step_debug.h"

#include <gtest/gtest.h>

#include "nlohmann/json.hpp"
#include "runtime/checkpoint/safetensors.h"
#include "runtime/comparison.h"
#include "runtime/testing/failing_files.h"
#include "runtime/testing/toy_run.h"

namespace fathom {
namespace {

class StepDebugTest : public ::testing::Test {
 protected:
  std::string Path(const std::string& name) const { return JoinPath(directory_, name); }

  ToyRun Run(const std::string& output, const std::vector<std::string>& overrides,
             bool resume = false) {
    ToyRun run = RunToy("toy_xmod", directory_, output, overrides, {.resume = resume});
    EXPECT_TRUE(run.status.ok()) << run.status;
    return run;
  }

  void ExpectEqual(const std::string& a, const std::string& b) {
    const auto comparison = Compare(PosixFileSystem(), Path(a), Path(b), 0);
    ASSERT_TRUE(comparison.ok()) << comparison.status();
    EXPECT_GT(comparison->tensors, 0);
    for (const Difference& difference : comparison->differences) {
      ADD_FAILURE() << difference.where << ": " << difference.what;
    }
  }

  std::string directory_ = NewTestDirectory();
};

TEST_F(StepDebugTest, ADumpAfterAResumeIsThatOfTheUninterruptedRun) {
  const ToyRun whole = Run("whole", {"debug.dump_step=2"});
  EXPECT_TRUE(whole.Said("step 2 is dumped in " + Path("whole/dump_00000002")));
  // The third step's checkpoint, continued at the second.
  Run("resumed", {});
  WriteTestFile(Path("resumed/LATEST"), "step_00000001\n");
  Run("resumed", {"debug.dump_step=2", "debug.dump_dir=" + Path("dump")}, /*resume=*/true);
  ExpectEqual("whole/dump_00000002", "dump");
  ExpectEqual("whole", "resumed");
}

TEST_F(StepDebugTest, ADumpAgreesWithCheckpointsAndMetrics) {
  Run("run", {"debug.dump_step=2", "train.precision=FP64"});
  FileSystem& files = PosixFileSystem();
  const std::string dump = Path("run/dump_00000002/");
  for (const auto& [dumped, saved] :
       {std::pair("weights_before", "step_00000001"), {"weights_after", "step_00000002"}}) {
    const auto comparison =
        Compare(files, dump + dumped + ".safetensors",
                Path(std::string("run/") + saved + "/weights_00000.safetensors"), 0);
    ASSERT_TRUE(comparison.ok()) << comparison.status();
    EXPECT_EQ(comparison->differences.size(), 0);
  }
  // The norm of the dumped gradients is the recorded one, clipping not applied.
  const auto step = nlohmann::json::parse(*ReadFile(files, dump + "step.json"));
  EXPECT_EQ(step["step"], 2);
  const auto gradients = *SafetensorsFile::Open(files, dump + "gradients.safetensors");
  double squares = 0;
  for (const NamedArray& array : gradients->tensors()) {
    EXPECT_EQ(array.dtype, DType::kFloat64) << array.name;
    std::vector<double> values(array.shape.elements());
    ASSERT_TRUE(gradients->Read(array.name, DType::kFloat64, array.shape, values.data()).ok());
    for (const double value : values) squares += value * value;
  }
  EXPECT_GT(squares, 1) << "nothing to clip";
  EXPECT_NEAR(std::sqrt(squares) / step["gradient_norm"].get<double>(), 1, 1e-12);
}

TEST_F(StepDebugTest, ReplayingARunsOwnSelectionChangesNothing) {
  Run("run", {"debug.dump_step=1"});
  const std::string selection = "debug.selection_file=" + Path("run/dump_00000001");
  const ToyRun replayed = Run("replayed", {"train.steps=1", "schedule.warmup_fraction=0.5",
                                           "debug.dump_step=1", selection});
  EXPECT_TRUE(
      replayed.Said("the model itself would not have selected 0, the worst by a margin of 0"))
      << ::testing::PrintToString(replayed.log);
  const auto same = Compare(PosixFileSystem(), Path("run/dump_00000001/gradients.safetensors"),
                            Path("replayed/dump_00000001/gradients.safetensors"), 0);
  ASSERT_TRUE(same.ok());
  EXPECT_TRUE(same->differences.empty());
}

TEST_F(StepDebugTest, AForeignSelectionIsReplayedAndItsFlipsAreCounted) {
  Run("run", {"debug.dump_step=1"});
  // Other weights would select other tokens.
  const std::string selection =
      "debug.selection_file=" + Path("run/dump_00000001/selection.safetensors");
  const ToyRun replayed =
      Run("replayed", {"train.seed=2", "train.micro_batch=1", "debug.dump_step=1", selection});
  EXPECT_FALSE(replayed.Said("would not have selected 0"));
  const auto same = Compare(PosixFileSystem(), Path("run/dump_00000001/selection.safetensors"),
                            Path("replayed/dump_00000001/selection.safetensors"), 0);
  ASSERT_TRUE(same.ok());
  EXPECT_TRUE(same->differences.empty());
  EXPECT_EQ(same->tensors, 4);
}

TEST_F(StepDebugTest, RefusesBeforeTheFirstStep) {
  WriteTestFile(Path("mine.txt"), "");
  const ToyRun dump =
      RunToy("toy_xmod", directory_, "a", {"debug.dump_step=1", "debug.dump_dir=" + directory_});
  EXPECT_TRUE(absl::IsAlreadyExists(dump.status)) << dump.status;
  const ToyRun selection =
      RunToy("toy_xmod", directory_, "b", {"debug.selection_file=" + Path("missing")});
  EXPECT_TRUE(absl::IsNotFound(selection.status)) << selection.status;
  EXPECT_FALSE(PosixFileSystem().Exists(Path("b/metrics.jsonl")));
}

TEST_F(StepDebugTest, AStepThatIsDoneIsNotDumped) {
  Run("run", {});
  const ToyRun resumed = Run("run", {"train.steps=4", "debug.dump_step=2"}, /*resume=*/true);
  EXPECT_TRUE(resumed.Said("debug.dump_step 2 is done already: nothing will be dumped"));
  EXPECT_FALSE(PosixFileSystem().Exists(Path("run/dump_00000002")));
}

TEST_F(StepDebugTest, InitFromTakesACheckpointOfAnotherPrecision) {
  Run("run", {"train.steps=1"});
  Run("from_run", {"train.precision=FP64", "train.steps=1", "debug.dump_step=1",
                   "train.init_from=" + Path("run")});
  // The float32 weights, widened.
  const auto same = Compare(PosixFileSystem(), Path("run/step_00000001/weights_00000.safetensors"),
                            Path("from_run/dump_00000001/weights_before.safetensors"), 1e-300);
  ASSERT_TRUE(same.ok()) << same.status();
  EXPECT_TRUE(same->differences.empty());
  const ToyRun missing = RunToy("toy_xmod", directory_, "none", {"train.init_from=nowhere"});
  EXPECT_TRUE(absl::IsNotFound(missing.status)) << missing.status;
}

}  // namespace
}  // namespace fathom
