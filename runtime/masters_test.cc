#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "core/cpu_device.h"
#include "kernels/elementwise.h"
#include "runtime/checkpoint/safetensors.h"
#include "runtime/optimizer/optimizer.h"
#include "runtime/run_state.h"
#include "runtime/testing/failing_files.h"

// Weights in bfloat16 have masters in float32: what they are set from, and what files hold.
namespace fathom {
namespace {

// An embedding and a norm under AdamW without decay.
class MastersTest : public ::testing::Test {
 protected:
  // What one process of a run holds.
  struct Run {
    Run() : device(1), stream(device.NewStream()), arena(device, 1 << 16) {
      embedding = table.Add({"embedding", {3, 4}, ParameterRole::kEmbedding, 0.02});
      norm = table.Add({"norm", {4}, ParameterRole::kNorm});
      FATHOM_CHECK(table.Allocate(device, DType::kBFloat16, /*with_gradients=*/true).ok());
      FATHOM_CHECK(InitializeParameters(table, /*seed=*/1, *stream).ok());
      OptimizerConfig config;
      config.weight_decay = 0;
      config.clip = 0;
      optimizer = *Optimizer::Create(config, {}, table, *groups, device, *stream);
      totals = arena.New(DType::kFloat64, {2});
      totals.data<double>()[0] = 1;
    }
    void Step(double gradient, double learning_rate) {
      Launch(*stream, Fill{.value = gradient, .y = table.gradients()});
      ASSERT_TRUE(optimizer->Step(*stream, arena, learning_rate, totals).ok());
    }

    CpuDevice device;
    std::unique_ptr<Stream> stream;
    Arena arena;
    ParameterTable table;
    const Parameter *embedding, *norm;
    std::unique_ptr<RankGroups> groups = RankGroups::Alone();
    std::unique_ptr<Optimizer> optimizer;
    Tensor totals;  // the loss, and room for the squared norm
  };

  void Save(Run& run) {
    HostTensors weights, state;
    RankGroups& groups = *run.groups;
    ASSERT_TRUE(GatherTensors(WeightPieces(run.table, groups), groups, *run.stream, &weights).ok());
    ASSERT_TRUE(
        GatherTensors(OptimizerPieces(*run.optimizer, groups), groups, *run.stream, &state).ok());
    ASSERT_TRUE(WriteSafetensorsFile(PosixFileSystem(), weights_, weights.arrays(), {}).ok());
    ASSERT_TRUE(WriteSafetensorsFile(PosixFileSystem(), state_, state.arrays(), {}).ok());
  }
  void Load(Run& run) {
    const auto weights = SafetensorsFile::Open(PosixFileSystem(), weights_);
    const auto state = SafetensorsFile::Open(PosixFileSystem(), state_);
    ASSERT_TRUE(LoadWeights(**weights, {"embedding", "norm"}, run.table, *run.stream).ok());
    ASSERT_TRUE(LoadOptimizer(**state, *run.optimizer, *run.stream).ok());
  }

  const std::string directory_ = NewTestDirectory();
  const std::string weights_ = JoinPath(directory_, "weights.safetensors");
  const std::string state_ = JoinPath(directory_, "optimizer.safetensors");
};

TEST_F(MastersTest, MatricesAreRoundedAndTheRestIsNot) {
  Run run;
  EXPECT_EQ(run.embedding->weight.dtype(), DType::kBFloat16);
  EXPECT_EQ(run.embedding->master.dtype(), DType::kFloat32);
  EXPECT_EQ(run.embedding->gradient.dtype(), DType::kFloat32);
  EXPECT_EQ(run.norm->weight.raw(), run.norm->master.raw());
  EXPECT_EQ(run.norm->weight.dtype(), DType::kFloat32);
  bool rounding_shows = false;
  for (int64_t i = 0; i < run.embedding->master.elements(); ++i) {
    const float master = run.embedding->master.data<float>()[i];
    EXPECT_EQ(run.embedding->weight.data<BFloat16>()[i].bits, BFloat16(master).bits);
    rounding_shows |= static_cast<float>(BFloat16(master)) != master;
  }
  EXPECT_TRUE(rounding_shows);
}

// 1 - 1e-4 is 1 in bfloat16: without masters nothing would ever change.
TEST_F(MastersTest, SmallUpdatesAddUpThroughFiles) {
  auto run = std::make_unique<Run>();
  Launch(*run->stream, Fill{.value = 1, .y = run->embedding->master});
  Save(*run);
  for (int i = 0; i < 20; ++i) {
    run = std::make_unique<Run>();
    Load(*run);
    // AdamW's steps under a constant gradient are the learning rate.
    run->Step(/*gradient=*/1, /*learning_rate=*/1e-4);
    Save(*run);
  }
  for (const Parameter* parameter : {run->embedding, run->norm}) {
    for (int64_t i = 0; i < parameter->master.elements(); ++i) {
      EXPECT_NEAR(parameter->master.data<float>()[i], 0.998, 2e-6);
    }
  }
  EXPECT_EQ(run->embedding->weight.data<BFloat16>()[0].bits, BFloat16(0.998f).bits);
}

TEST_F(MastersTest, ASkippedStepLeavesBothAsTheyWere) {
  Run run;
  run.Step(1, 0.01);
  const std::vector<char> masters(
      static_cast<char*>(run.embedding->master.raw()),
      static_cast<char*>(run.embedding->master.raw()) + run.embedding->master.bytes());
  const std::vector<char> weights(
      static_cast<char*>(run.embedding->weight.raw()),
      static_cast<char*>(run.embedding->weight.raw()) + run.embedding->weight.bytes());
  run.Step(std::numeric_limits<double>::infinity(), 0.01);
  EXPECT_EQ(std::memcmp(masters.data(), run.embedding->master.raw(), masters.size()), 0);
  EXPECT_EQ(std::memcmp(weights.data(), run.embedding->weight.raw(), weights.size()), 0);
  run.Step(1, 0.01);
  EXPECT_NE(std::memcmp(masters.data(), run.embedding->master.raw(), masters.size()), 0);
  EXPECT_NE(std::memcmp(weights.data(), run.embedding->weight.raw(), weights.size()), 0);
}

}  // namespace
}  // namespace fathom
