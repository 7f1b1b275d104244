#include "runtime/memory_plan.h"

#include <gtest/gtest.h>

#include "core/accounting.h"
#include "core/cpu_device.h"
#include "runtime/language_model.h"
#include "runtime/optimizer/optimizer.h"

namespace fathom {
namespace {

Job MakeJob(const std::string& plan, const std::vector<std::string>& more = {}) {
  const std::string text = R"(
    model { d: 48 heads: 6 kv_heads: 2 head_dim: 12 ffn: 80 vocabulary: 300 experts: 6 routed: 2 shared: 1 expert_ffn: 20 plan )" +
                           plan + R"( }
    data { text: "unused" }
    train { steps: 1 sequence_length: 50 micro_batch: 3 global_batch: 6 })";
  const absl::StatusOr<Job> job = ParseJob(text, "test", more);
  FATHOM_CHECK(job.ok()) << job.status().message();
  return *job;
}

std::vector<Job> Jobs() {
  const std::string mixed =
      "[{repeat: 1 dense {}}, {repeat: 3 sparse { sparsity: 7 }}, {repeat: 1 dense {}}]";
  return {MakeJob("[{repeat: 3 dense {}}]"),
          MakeJob(mixed),
          MakeJob(mixed, {"model.gate=MOD", "train.precision=FP64"}),
          MakeJob(mixed, {"train.precision=BF16"}),
          MakeJob("[{repeat: 4 sparse { sparsity: 3 }}]", {"model.gate=NONE"}),
          MakeJob("[{repeat: 3 moe {}}]"),
          MakeJob("[{moe {}}, {sparse { sparsity: 5 experts: true }}, {dense {}}]",
                  {"train.precision=BF16"})};
}

// Two independent counts: the formulas of core/accounting.h, and what the model's own code
// launches.
TEST(MemoryPlan, ExecutedFlopsAreTheExactConvention) {
  for (const Job& job : Jobs()) {
    const absl::StatusOr<MemoryPlan> plan = PlanMemory(job);
    ASSERT_TRUE(plan.ok()) << plan.status();
    const double tokens = job.train.micro_batch * job.train.sequence_length;
    const double expected =
        tokens * CountFlopsPerToken(job.model, job.train.sequence_length).exact_training;
    double executed = plan->micro_batch.matrix_flops;
    // Without a gate the router learns from the auxiliary loss alone, but it is computed.
    EXPECT_NEAR(executed, expected, 1e-9 * expected) << ShortForm(job.model.plan.segments);
  }
}

// The same of three sequences that documents divide.
TEST(MemoryPlan, ExecutedFlopsCountTheDocuments) {
  for (const Job& job : Jobs()) {
    const std::unique_ptr<Device> device = NewDryDevice();
    const std::unique_ptr<RankGroups> alone = RankGroups::Alone();
    const LanguageModelOptions options{
        .dtype = ComputeDType(job.train.precision), .length = 50, .with_gradients = true};
    auto model = LanguageModel::Create(job.model, options, *alone, *device);
    ASSERT_TRUE(model.ok());
    Stream& stream = (*model)->stream();
    HostBatch host = HostBatch::WholeSequences(3, 50);
    host.segments = {0, 20, 50, 100, 101, 149, 150};
    const double pairs = 210 + 465 + 1275 + 1 + 1176 + 1;
    stream.ledger().Clear();
    const MicroBatch batch = Upload(host, stream, (*model)->arena());
    Pass pass = (*model)->stage().NewPass(stream, (*model)->arena(), batch);
    pass.training = true;
    pass.auxiliary_weight = 1e-3;
    const Tensor losses = (*model)->arena().New(StatisticsDType((*model)->dtype()), {batch.rows()});
    (*model)->stage().Forward(pass, batch);
    (*model)->stage().Loss(pass, batch, 1, losses);
    (*model)->stage().Backward(pass, batch);
    const double whole = CountFlopsPerToken(job.model, 50).exact_training;
    const double expected = CountFlopsPerToken(job.model, 50, pairs / 3).exact_training;
    EXPECT_LT(expected, whole * 0.995);
    const double executed = stream.ledger().total().matrix_flops / 150;
    EXPECT_NEAR(executed, expected, 1e-9 * expected) << ShortForm(job.model.plan.segments);
  }
}

TEST(MemoryPlan, ParametersAreThoseOfTheAccounting) {
  for (const Job& job : Jobs()) {
    ParameterTable table;
    TensorGroup alone;
    ExpertGroup experts;
    const LayerRange layers{0, static_cast<int64_t>(job.model.plan.layers.size())};
    const Stage stage(job.model, layers, alone, experts, table);
    std::map<std::string, std::vector<int64_t>> counted;
    for (const CountedParameter& parameter : EnumerateParameters(job.model)) {
      counted[parameter.name] = parameter.dims;
    }
    EXPECT_EQ(table.all().size(), counted.size());
    for (const Parameter& parameter : table.all()) {
      std::vector<int64_t> dims;
      for (int i = 0; i < parameter.spec.shape.rank(); ++i) {
        dims.push_back(parameter.spec.shape[i]);
      }
      ASSERT_TRUE(counted.count(parameter.spec.name)) << parameter.spec.name;
      EXPECT_EQ(dims, counted[parameter.spec.name]) << parameter.spec.name;
    }
    EXPECT_EQ(table.elements(), CountParameters(job.model).total);
  }
}

// A step on the CPU takes from its arena exactly what the dry run foretold.
TEST(MemoryPlan, TheCpuUsesWhatWasPlanned) {
  for (const Job& job : Jobs()) {
    const absl::StatusOr<MemoryPlan> plan = PlanMemory(job);
    ASSERT_TRUE(plan.ok()) << plan.status();
    CpuDevice device(2);
    const std::unique_ptr<RankGroups> groups = RankGroups::Alone();
    const auto training = TrainingModel::Create(job, *groups, device);
    ASSERT_TRUE(training.ok()) << training.status();
    Stream& stream = (*training)->stream();
    ASSERT_TRUE(InitializeParameters((*training)->parameters(), 1, stream).ok());
    std::vector<double> numbers(kStepTotals);
    const Tensor totals(numbers.data(), DType::kFloat64, {kStepTotals});
    const HostBatch batch =
        HostBatch::WholeSequences(job.train.micro_batch, job.train.sequence_length);
    const std::vector<HostBatch> step(job.train.global_batch / job.train.micro_batch, batch);
    ASSERT_TRUE((*training)->ComputeGradients(step, 1, totals, {}).ok());
    ASSERT_TRUE((*training)->Update(0, totals).ok());
    const MemoryPlan measured = MeasureMemory(**training);
    EXPECT_EQ(measured.weights, plan->weights);
    EXPECT_EQ(measured.gradients, plan->gradients);
    EXPECT_EQ(measured.optimizer, plan->optimizer);
    EXPECT_LE(measured.activations, plan->activations);
    EXPECT_GE(measured.activations, plan->activations * 9 / 10);
  }
}

}  // namespace
}  // namespace fathom
