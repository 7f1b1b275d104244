#include "runtime/memory_report.h"

#include <gtest/gtest.h>

#include "runtime/testing/failing_files.h"
#include "runtime/testing/toy_run.h"

namespace fathom {
namespace {

MemoryPlan Plan(int64_t weights, int64_t gradients, int64_t optimizer, int64_t activations) {
  MemoryPlan plan;
  plan.weights = weights;
  plan.gradients = gradients;
  plan.optimizer = optimizer;
  plan.activations = activations;
  return plan;
}

using Lines = std::vector<std::string>;

TEST(MemoryReportTest, SaysWhatIsAsPlanned) {
  const MemoryPlan plan = Plan(1000000, 2000000, 3000000, 4000000);
  EXPECT_EQ(DescribeMemory(plan, plan, 20000000),
            (Lines{"memory: 10.00 MB, planned 10.00 MB (the same bytes): weights 1.00 MB, "
                   "gradients 2.00 MB, optimizer 3.00 MB, activations 4.00 MB; the process has had "
                   "20.00 MB resident"}));
}

TEST(MemoryReportTest, WarnsBeyondATenth) {
  const MemoryPlan plan = Plan(1000000, 1000000, 1000000, 1000000);
  EXPECT_EQ(
      DescribeMemory(plan, Plan(1100000, 900000, 1100001, 1000000), 0),
      (Lines{"memory: 4.10 MB, planned 4.00 MB: weights 1.10 MB (planned 1.00 MB), gradients 0.90 "
             "MB (planned 1.00 MB), optimizer 1.10 MB (planned 1.00 MB), activations 1.00 MB",
             "warning: optimizer take 1100001 bytes where the plan of \"fathom inspect\" says "
             "1000000"}));
}

TEST(MemoryReportTest, TheProcessHoldsMemory) { EXPECT_GT(PeakResidentBytes(), 1 << 20); }

// Training takes, to the byte, what the dry run of the same code says.
TEST(MemoryReportTest, ToysTakeWhatIsPlanned) {
  for (const std::string job : {"toy_dense", "toy_mod", "toy_xmod"}) {
    for (const std::string precision : {"FP32", "FP64", "BF16"}) {
      const ToyRun run =
          RunToy(job, NewTestDirectory(), "run", {"train.steps=1", "train.precision=" + precision});
      ASSERT_TRUE(run.status.ok()) << run.status;
      EXPECT_TRUE(run.Said("(the same bytes)"))
          << job << " " << precision << ::testing::PrintToString(run.log);
    }
  }
}

}  // namespace
}  // namespace fathom
