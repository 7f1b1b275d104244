#include "runtime/reshard.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/job.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint_saver.h"
#include "runtime/run_state.h"
#include "runtime/testing/failing_files.h"
#include "runtime/testing/step_ranks.h"

namespace fathom {
namespace {

constexpr char kCheckpoint[] = "step_00000002";

Job MakeJob(const std::string& name, const std::vector<std::string>& layout,
            const std::string& output) {
  std::vector<std::string> settings = {"train.precision=FP32", "train.sequence_length=32",
                                       "train.global_batch=8", "train.micro_batch=1",
                                       "train.output=" + output};
  for (const std::string& field : layout) settings.push_back("parallel." + field);
  const auto job = ReadJob("launch/jobs/" + name + ".txtpb", settings);
  FATHOM_CHECK(job.ok()) << job.status().message();
  return *job;
}

absl::Status SaveRank(const Job& job, StepRank& rank) {
  CheckpointSaver saver(PosixFileSystem(), job, rank.groups, rank.training.stream(),
                        [](const std::string&) {});
  FATHOM_RETURN_IF_ERROR(
      saver.Save({.step = 2,
                  .consumed_sequences = 16,
                  .weights = WeightPieces(rank.training.parameters(), rank.groups),
                  .optimizer = OptimizerPieces(rank.training.optimizer(), rank.groups),
                  .integers = {{"answer", 42}},
                  .numbers = {{"third", 1.0 / 3}}},
                 /*background=*/false));
  EXPECT_EQ(saver.saved_step(), 2);
  return absl::OkStatus();
}

// The checkpoint of two steps.
void TrainAndSave(const Job& job) {
  const absl::Status status = RunStepRanks(job, {}, [&](StepRank& rank) -> absl::Status {
    for (int step = 0; step < 2; ++step) FATHOM_RETURN_IF_ERROR(rank.TrainAndUpdate());
    return SaveRank(job, rank);
  });
  ASSERT_TRUE(status.ok()) << status;
}

// What the ranks of `job` save of a checkpoint that they have loaded.
void LoadAndSave(const Job& job, const std::string& directory) {
  const absl::Status status = RunStepRanks(job, {}, [&](StepRank& rank) -> absl::Status {
    FATHOM_ASSIGN_OR_RETURN(const Checkpoint checkpoint,
                            OpenCheckpoint(PosixFileSystem(), directory));
    FATHOM_RETURN_IF_ERROR(LoadWeights(*checkpoint.weights, ParameterNames(job.model),
                                       rank.training.parameters(), rank.training.stream()));
    FATHOM_RETURN_IF_ERROR(
        LoadOptimizer(*checkpoint.optimizer, rank.training.optimizer(), rank.training.stream()));
    return SaveRank(job, rank);
  });
  ASSERT_TRUE(status.ok()) << status;
}

absl::StatusOr<std::string> Reshard(FileSystem& files, const std::string& from,
                                    const std::string& output, const ReshardOptions& options) {
  return ReshardCheckpoint(files, from, output, options, [](const std::string&) {});
}

std::string ContentsOf(const std::string& path) {
  const auto text = ReadFile(PosixFileSystem(), path);
  EXPECT_TRUE(text.ok()) << text.status();
  return text.value_or("");
}

struct Move {
  const char* job;
  std::vector<std::string> from, to;
};

class Resharded : public ::testing::TestWithParam<Move> {};

TEST_P(Resharded, IsByteForByteWhatThatLayoutSaves) {
  const Move& move = GetParam();
  const std::string directory = NewTestDirectory();
  const std::string from = JoinPath(directory, "from");
  TrainAndSave(MakeJob(move.job, move.from, from));
  // What is not named stays as it is.
  std::vector<std::string> to = move.from;
  to.insert(to.end(), move.to.begin(), move.to.end());
  const Job job = MakeJob(move.job, to, JoinPath(directory, "saved"));
  LoadAndSave(job, JoinPath(from, kCheckpoint));
  if (HasFatalFailure()) return;

  const std::string output = JoinPath(directory, "resharded");
  const auto layout = Reshard(PosixFileSystem(), from, output, {.layout = move.to});
  ASSERT_TRUE(layout.ok()) << layout.status();
  EXPECT_EQ(*layout, MeshOf(job.parallel).ToString());
  EXPECT_EQ(ContentsOf(JoinPath(output, "LATEST")), std::string(kCheckpoint) + "\n");
  const std::string expected = JoinPath(job.train.output, kCheckpoint);
  const std::string actual = JoinPath(output, kCheckpoint);
  const std::vector<std::string> names = *PosixFileSystem().List(expected);
  EXPECT_EQ(*PosixFileSystem().List(actual), names);
  EXPECT_GE(names.size(), 3u);
  for (const std::string& name : names) {
    if (name == kManifestFile) continue;
    EXPECT_TRUE(ContentsOf(JoinPath(actual, name)) == ContentsOf(JoinPath(expected, name))) << name;
  }
  // The manifests differ in the job's output alone.
  const auto resharded = OpenCheckpoint(PosixFileSystem(), actual);
  const auto saved = OpenCheckpoint(PosixFileSystem(), expected);
  ASSERT_TRUE(resharded.ok() && saved.ok()) << resharded.status() << saved.status();
  EXPECT_EQ(VerifyCheckpoint(*resharded), std::vector<std::string>());
  Manifest manifest = *resharded->manifest;
  EXPECT_TRUE(manifest.job_text == MakeJob(move.job, to, from).text);
  manifest.job_text = saved->manifest->job_text;
  EXPECT_TRUE(FormatManifest(manifest) == FormatManifest(*saved->manifest));
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, Resharded,
    ::testing::Values(Move{"toy_xmod", {}, {"tensor=4", "sequence=true"}},
                      Move{"toy_xmod", {"tensor=4"}, {"tensor=2", "pipeline=2"}},
                      Move{"toy_xmod", {"pipeline=3"}, {"pipeline=1"}},
                      Move{"toy_xmod",
                           {"pipeline=2", "schedule=INTERLEAVED", "virtual_stages=2"},
                           {"schedule=ONE_F_ONE_B", "virtual_stages=1"}},
                      Move{"toy_mod", {"data=4", "zero=1"}, {"data=2", "zero=0"}},
                      Move{"toy_moe", {"data=4", "expert=4"}, {"expert=2"}},
                      Move{"toy_moe_xmod",
                           {"data=2", "tensor=2", "expert=2", "expert_tensor=true"},
                           {"expert_tensor=false", "expert=4", "zero=1", "pipeline=2"}}));

class ReshardTest : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = NewTestDirectory();
    from_ = JoinPath(directory_, "from");
    output_ = JoinPath(directory_, "output");
    TrainAndSave(MakeJob("toy_moe", {"data=2"}, from_));
  }

  std::string directory_, from_, output_;
  ReshardOptions options_{.layout = {"data=1", "tensor=2", "expert=2"}};
};

TEST_F(ReshardTest, WeightsAloneMayBeRounded) {
  options_.weights_only = true;
  options_.dtype = DType::kBFloat16;
  ASSERT_TRUE(Reshard(PosixFileSystem(), from_, output_, options_).ok());
  const auto from = OpenCheckpoint(PosixFileSystem(), JoinPath(from_, kCheckpoint));
  const auto to = OpenCheckpoint(PosixFileSystem(), JoinPath(output_, kCheckpoint));
  ASSERT_TRUE(from.ok() && to.ok());
  EXPECT_TRUE(to->optimizer->tensors().empty());
  ASSERT_EQ(to->weights->tensors().size(), from->weights->tensors().size());
  int64_t rounded = 0;
  for (const NamedArray& exact : from->weights->tensors()) {
    const NamedArray* written = to->weights->Find(exact.name);
    ASSERT_NE(written, nullptr) << exact.name;
    std::vector<float> values(exact.shape.elements());
    ASSERT_TRUE(from->weights->Read(exact.name, DType::kFloat32, exact.shape, values.data()).ok());
    // The gates choose, and are not rounded.
    if (exact.name.find("mlp.gate.") != std::string::npos) {
      EXPECT_EQ(written->dtype, DType::kFloat32) << exact.name;
      continue;
    }
    std::vector<BFloat16> half(values.size());
    ASSERT_TRUE(to->weights->Read(exact.name, DType::kBFloat16, exact.shape, half.data()).ok());
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(static_cast<float>(half[i]), static_cast<float>(BFloat16(values[i])))
          << exact.name << " " << i;
    }
    ++rounded;
  }
  EXPECT_GT(rounded, 20);
}

// Whatever fails, what was there stays, and another call goes through.
TEST_F(ReshardTest, AFailureLeavesNothingAndCanBeRepeated) {
  FailingFiles counting(-1);
  ASSERT_TRUE(Reshard(counting, from_, output_, options_).ok());
  const std::string manifest = JoinPath(output_, std::string(kCheckpoint) + "/manifest.json");
  const std::string expected = ContentsOf(manifest);
  ASSERT_GT(counting.operations(), 20);
  for (int64_t fail_at = 0; fail_at < counting.operations(); fail_at += 7) {
    SCOPED_TRACE(fail_at);
    ASSERT_TRUE(PosixFileSystem().RemoveAll(output_).ok());
    FailingFiles failing(fail_at);
    const auto failed = Reshard(failing, from_, output_, options_);
    if (failed.ok()) {
      // Cleaning up after the new one was in place.
      EXPECT_TRUE(ContentsOf(manifest) == expected);
      continue;
    }
    EXPECT_EQ(failed.status().code(), absl::StatusCode::kResourceExhausted);
    auto again = Reshard(PosixFileSystem(), from_, output_, options_);
    if (absl::IsAlreadyExists(again.status())) {
      // All was done but to make its name durable.
      const auto latest = ReadLatest(PosixFileSystem(), output_);
      ASSERT_TRUE(latest.ok()) << latest.status();
      EXPECT_EQ(*latest, JoinPath(output_, kCheckpoint));
      EXPECT_TRUE(ContentsOf(manifest) == expected);
      continue;
    }
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_TRUE(ContentsOf(manifest) == expected);
  }
}

TEST_F(ReshardTest, NothingIsOverwritten) {
  const std::string before =
      ContentsOf(JoinPath(from_, std::string(kCheckpoint) + "/manifest.json"));
  EXPECT_EQ(Reshard(PosixFileSystem(), from_, from_, options_).status().code(),
            absl::StatusCode::kAlreadyExists);
  EXPECT_TRUE(ContentsOf(JoinPath(from_, std::string(kCheckpoint) + "/manifest.json")) == before);
  WriteTestFile(output_, "a file");
  EXPECT_EQ(Reshard(PosixFileSystem(), from_, output_, options_).status().code(),
            absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(ContentsOf(output_), "a file");
}

// A run would count them as its own checkpoints, and remove them.
TEST_F(ReshardTest, StaysAwayFromTheCheckpointsOfRuns) {
  for (const char* inside :
       {"step_00000009", "step_00000009/", "step_00000009.tmp", "step_00000002/for_two"}) {
    const auto status =
        Reshard(PosixFileSystem(), from_, JoinPath(from_, inside), options_).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << inside;
    EXPECT_NE(status.message().find("among the checkpoints of the run " + from_), std::string::npos)
        << status;
  }
  EXPECT_TRUE(Reshard(PosixFileSystem(), from_, JoinPath(from_, "for_two"), options_).ok());
}

TEST_F(ReshardTest, WeightsAloneStayAlone) {
  ReshardOptions weights = options_;
  weights.weights_only = true;
  ASSERT_TRUE(Reshard(PosixFileSystem(), from_, output_, weights).ok());
  const std::string again = JoinPath(directory_, "again");
  const auto refused = Reshard(PosixFileSystem(), output_, again, options_).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(refused.message().find("weights alone"), std::string::npos) << refused;
  EXPECT_TRUE(Reshard(PosixFileSystem(), output_, again, weights).ok());
}

TEST_F(ReshardTest, RefusesLayoutsThatTheJobCannotHave) {
  const auto refused = [&](const std::vector<std::string>& layout) {
    const auto status = Reshard(PosixFileSystem(), from_, output_, {.layout = layout}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_FALSE(PosixFileSystem().Exists(output_));
    return std::string(status.message());
  };
  EXPECT_NE(refused({"tensor=3"}).find("tensor"), std::string::npos);
  EXPECT_NE(refused({"data=3"}).find("3"), std::string::npos);
  EXPECT_NE(refused({"pipeline=100"}).find("100"), std::string::npos);
  EXPECT_NE(refused({"colour=2"}).find("parallel.colour"), std::string::npos);
  EXPECT_NE(refused({"tensor"}).find("tensor"), std::string::npos);
}

TEST_F(ReshardTest, ADamagedCheckpointIsNamed) {
  const std::string shard =
      JoinPath(from_, std::string(kCheckpoint) + "/weights_00001.safetensors");
  std::string bytes = ContentsOf(shard);
  bytes[bytes.size() - 5] ^= 1;
  WriteTestFile(shard, bytes);
  const auto status = Reshard(PosixFileSystem(), from_, output_, options_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_NE(status.message().find(shard), std::string::npos) << status;
  EXPECT_FALSE(PosixFileSystem().Exists(output_));
}

}  // namespace
}  // namespace fathom
