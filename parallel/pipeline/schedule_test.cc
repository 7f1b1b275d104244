#include "parallel/pipeline/schedule.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "parallel/pipeline/simulate.h"

namespace fathom {
namespace {

constexpr int64_t kLayers = 298;

PipelineShape Shape(PipelineSchedule schedule, int stages, int micro_batches, int chunks = 1) {
  return {.schedule = schedule, .stages = stages, .micro_batches = micro_batches, .chunks = chunks};
}

std::vector<PipelineList> Lists(const PipelineShape& shape) {
  auto lists = MakePipelineSchedule(shape, kLayers);
  EXPECT_TRUE(lists.ok()) << lists.status();
  return *lists;
}

std::vector<std::string> ComputeOrders(const PipelineShape& shape) {
  std::vector<std::string> orders;
  for (const PipelineList& list : Lists(shape)) orders.push_back(ComputeOrder(list, shape));
  return orders;
}

TEST(ScheduleTest, OneForwardOneBackwardOnTwoStages) {
  using List = std::vector<std::string>;
  const auto orders = [](int m) { return ComputeOrders(Shape(PipelineSchedule::k1F1B, 2, m)); };
  EXPECT_EQ(orders(1), (List{"F0 B0",  //
                             "F0 B0"}));
  EXPECT_EQ(orders(2), (List{"F0 F1 B0 B1",  //
                             "F0 B0 F1 B1"}));
  EXPECT_EQ(orders(3), (List{"F0 F1 B0 F2 B1 B2",  //
                             "F0 B0 F1 B1 F2 B2"}));
  EXPECT_EQ(orders(5), (List{"F0 F1 B0 F2 B1 F3 B2 F4 B3 B4",  //
                             "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4"}));
}

TEST(ScheduleTest, OneForwardOneBackwardOnThreeStages) {
  using List = std::vector<std::string>;
  const auto orders = [](int m) { return ComputeOrders(Shape(PipelineSchedule::k1F1B, 3, m)); };
  EXPECT_EQ(orders(1), (List{"F0 B0", "F0 B0", "F0 B0"}));
  EXPECT_EQ(orders(2), (List{"F0 F1 B0 B1",  //
                             "F0 F1 B0 B1",  //
                             "F0 B0 F1 B1"}));
  EXPECT_EQ(orders(3), (List{"F0 F1 F2 B0 B1 B2",  //
                             "F0 F1 B0 F2 B1 B2",  //
                             "F0 B0 F1 B1 F2 B2"}));
  EXPECT_EQ(orders(4), (List{"F0 F1 F2 B0 F3 B1 B2 B3",  //
                             "F0 F1 B0 F2 B1 F3 B2 B3",  //
                             "F0 B0 F1 B1 F2 B2 F3 B3"}));
  EXPECT_EQ(orders(7), (List{"F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 F6 B4 B5 B6",  //
                             "F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 F6 B5 B6",  //
                             "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6"}));
}

TEST(ScheduleTest, OneForwardOneBackwardOnFourStages) {
  using List = std::vector<std::string>;
  const auto orders = [](int m) { return ComputeOrders(Shape(PipelineSchedule::k1F1B, 4, m)); };
  EXPECT_EQ(orders(1), (List{"F0 B0", "F0 B0", "F0 B0", "F0 B0"}));
  EXPECT_EQ(orders(3), (List{"F0 F1 F2 B0 B1 B2",  //
                             "F0 F1 F2 B0 B1 B2",  //
                             "F0 F1 B0 F2 B1 B2",  //
                             "F0 B0 F1 B1 F2 B2"}));
  EXPECT_EQ(orders(4), (List{"F0 F1 F2 F3 B0 B1 B2 B3",  //
                             "F0 F1 F2 B0 F3 B1 B2 B3",  //
                             "F0 F1 B0 F2 B1 F3 B2 B3",  //
                             "F0 B0 F1 B1 F2 B2 F3 B3"}));
  EXPECT_EQ(orders(5), (List{"F0 F1 F2 F3 B0 F4 B1 B2 B3 B4",  //
                             "F0 F1 F2 B0 F3 B1 F4 B2 B3 B4",  //
                             "F0 F1 B0 F2 B1 F3 B2 F4 B3 B4",  //
                             "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4"}));
  EXPECT_EQ(orders(9), (List{"F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 F7 B4 F8 B5 B6 B7 B8",
                             "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 F6 B4 F7 B5 F8 B6 B7 B8",
                             "F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 F6 B5 F7 B6 F8 B7 B8",
                             "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7 F8 B8"}));
}

TEST(ScheduleTest, GPipe) {
  using List = std::vector<std::string>;
  EXPECT_EQ(ComputeOrders(Shape(PipelineSchedule::kGPipe, 2, 1)), (List{"F0 B0", "F0 B0"}));
  EXPECT_EQ(ComputeOrders(Shape(PipelineSchedule::kGPipe, 3, 4)),
            List(3, "F0 F1 F2 F3 B0 B1 B2 B3"));
  EXPECT_EQ(ComputeOrders(Shape(PipelineSchedule::kGPipe, 4, 9)),
            List(4, "F0 F1 F2 F3 F4 F5 F6 F7 F8 B0 B1 B2 B3 B4 B5 B6 B7 B8"));
}

TEST(ScheduleTest, Interleaved) {
  using List = std::vector<std::string>;
  EXPECT_EQ(
      ComputeOrders(Shape(PipelineSchedule::kInterleaved, 2, 2, 2)),
      (List{"F0.0 F1.0 F0.1 F1.1 B0.1 B1.1 B0.0 B1.0", "F0.0 F1.0 F0.1 B0.1 F1.1 B1.1 B0.0 B1.0"}));
  EXPECT_EQ(ComputeOrders(Shape(PipelineSchedule::kInterleaved, 2, 4, 2)),
            (List{"F0.0 F1.0 F0.1 F1.1 F2.0 B0.1 F3.0 B1.1 F2.1 B0.0 F3.1 B1.0 B2.1 B3.1 B2.0 B3.0",
                  "F0.0 F1.0 F0.1 B0.1 F1.1 B1.1 F2.0 B0.0 F3.0 B1.0 F2.1 B2.1 F3.1 B3.1 B2.0 "
                  "B3.0"}));
  EXPECT_EQ(ComputeOrders(Shape(PipelineSchedule::kInterleaved, 3, 3, 2)),
            (List{"F0.0 F1.0 F2.0 F0.1 F1.1 F2.1 B0.1 B1.1 B2.1 B0.0 B1.0 B2.0",
                  "F0.0 F1.0 F2.0 F0.1 F1.1 F2.1 B0.1 B1.1 B2.1 B0.0 B1.0 B2.0",
                  "F0.0 F1.0 F2.0 F0.1 B0.1 F1.1 B1.1 F2.1 B2.1 B0.0 B1.0 B2.0"}));
}

std::vector<std::string> Texts(const PipelineShape& shape) {
  std::vector<std::string> texts;
  for (const PipelineList& list : Lists(shape)) texts.push_back(ToString(list, shape));
  return texts;
}

TEST(ScheduleTest, TransfersStandWhereTheDataIs) {
  using List = std::vector<std::string>;
  EXPECT_EQ(Texts(Shape(PipelineSchedule::k1F1B, 2, 2)),
            (List{"F0 a0>1 F1 a1>1 g0<1 B0 g1<1 B1",  //
                  "a0<0 F0 a1<0 B0 g0>0 F1 B1 g1>0"}));
  EXPECT_EQ(Texts(Shape(PipelineSchedule::kGPipe, 3, 1)),
            (List{"F0 a0>1 g0<1 B0",            //
                  "a0<0 F0 a0>2 g0<2 B0 g0>0",  //
                  "a0<1 F0 B0 g0>1"}));
  EXPECT_EQ(Texts(Shape(PipelineSchedule::kInterleaved, 2, 2, 2))[1],
            "a0.0<0 F0.0 a1.0<0 a0.0>0 F1.0 a0.1<0 a1.0>0 F0.1 a1.1<0 B0.1 g0.1>0 F1.1 B1.1 g0.0<0 "
            "g1.1>0 B0.0 g1.0<0 g0.0>0 B1.0 g1.0>0");
  EXPECT_EQ(Texts(Shape(PipelineSchedule::kInterleaved, 1, 2, 2)),
            (List{"F0.0 F0.1 B0.1 F1.0 B0.0 F1.1 B1.1 B1.0"}));
}

std::vector<PipelineShape> AllShapes() {
  std::vector<PipelineShape> shapes;
  for (int stages = 1; stages <= 5; ++stages) {
    for (const int m : {1, stages - 1, stages, stages + 1, 2 * stages + 1, 16}) {
      if (m < 1) continue;
      shapes.push_back(Shape(PipelineSchedule::kGPipe, stages, m));
      shapes.push_back(Shape(PipelineSchedule::k1F1B, stages, m));
    }
    for (const int chunks : {2, 3, 4}) {
      for (const int groups : {1, 2, 4}) {
        shapes.push_back(Shape(PipelineSchedule::kInterleaved, stages, groups * stages, chunks));
      }
    }
  }
  return shapes;
}

std::string Describe(const PipelineShape& shape) {
  return absl::StrCat("schedule ", static_cast<int>(shape.schedule), ", P ", shape.stages, ", M ",
                      shape.micro_batches, ", V ", shape.chunks);
}

TEST(ScheduleTest, ListsAreCompleteAndEndWithBlockingSends) {
  for (const PipelineShape& shape : AllShapes()) {
    EXPECT_EQ(CheckPipelineLists(shape, Lists(shape)), absl::OkStatus()) << Describe(shape);
  }
  const PipelineShape large = Shape(PipelineSchedule::kInterleaved, 8, 64, 4);
  EXPECT_EQ(CheckPipelineLists(large, Lists(large)), absl::OkStatus());
}

TEST(ScheduleTest, BubbleIsTheFormula) {
  for (const PipelineShape& shape : AllShapes()) {
    for (const double backward : {1.0, 2.0, 3.0}) {
      const auto timeline = SimulatePipeline(shape, Lists(shape), UniformCosts(shape, 1, backward));
      ASSERT_TRUE(timeline.ok()) << timeline.status();
      const double p = shape.stages, m = shape.micro_batches, v = shape.chunks;
      EXPECT_NEAR(timeline->bubble_fraction, (p - 1) / (v * m + p - 1), 1e-12)
          << Describe(shape) << ", backward " << backward;
      // Against the time of computing: (P-1)/M, divided by the chunks.
      const double computing = m * (1 + backward);
      EXPECT_NEAR(timeline->length / computing - 1, (p - 1) / m / v, 1e-12) << Describe(shape);
    }
  }
}

TEST(ScheduleTest, PeakInFlight) {
  for (const int m : {1, 3, 4, 9}) {
    const PipelineShape gpipe = Shape(PipelineSchedule::kGPipe, 4, m);
    EXPECT_EQ(SimulatePipeline(gpipe, Lists(gpipe), UniformCosts(gpipe, 1, 2))->peak_in_flight,
              std::vector<int>(4, m));
    const PipelineShape pairs = Shape(PipelineSchedule::k1F1B, 4, m);
    EXPECT_EQ(SimulatePipeline(pairs, Lists(pairs), UniformCosts(pairs, 1, 2))->peak_in_flight,
              (std::vector<int>{std::min(m, 4), std::min(m, 3), std::min(m, 2), 1}));
  }
}

// Uneven parts: by hand. Stage 1 is twice as slow, so stage 0 waits for it.
TEST(SimulateTest, UnevenStagesAndTransfers) {
  const PipelineShape shape = Shape(PipelineSchedule::k1F1B, 2, 2);
  const auto timeline = SimulatePipeline(shape, Lists(shape),
                                         {.forward = {1, 2}, .backward = {2, 4}, .transfer = 0.5});
  ASSERT_TRUE(timeline.ok()) << timeline.status();
  // Stage 1: F0 1.5-3.5, B0 3.5-7.5, F1 7.5-9.5, B1 9.5-13.5. Stage 0: B0 8-10, B1 14-16.
  EXPECT_EQ(timeline->length, 16);
  EXPECT_NEAR(timeline->bubble_fraction, 1 - (6.0 + 12.0) / 32, 1e-12);
}

TEST(ScheduleTest, WrongShapesAreRefused) {
  const auto message = [](const PipelineShape& shape, int64_t layers) {
    const auto lists = MakePipelineSchedule(shape, layers);
    EXPECT_EQ(lists.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(lists.status().message());
  };
  EXPECT_EQ(message(Shape(PipelineSchedule::kInterleaved, 4, 6, 2), 298),
            "the interleaved schedule needs micro-batches that are a multiple of the stages, which "
            "these are not: pipeline 4, micro-batches 6, chunks 2");
  EXPECT_EQ(message(Shape(PipelineSchedule::kInterleaved, 4, 8, 2), 7),
            "7 layers cannot be cut into 8 parts: pipeline 4, micro-batches 8, chunks 2");
  EXPECT_EQ(message(Shape(PipelineSchedule::k1F1B, 4, 8), 3),
            "3 layers cannot be cut into 4 parts: pipeline 4, micro-batches 8, chunks 1");
  EXPECT_EQ(message(Shape(PipelineSchedule::kInterleaved, 4, 8, 1), 298),
            "chunks is 1, but it must be 2 or more for the interleaved schedule");
  EXPECT_EQ(message(Shape(PipelineSchedule::kGPipe, 4, 8, 2), 298),
            "chunks is 2, but it must be 1 for GPipe and 1F1B");
  EXPECT_EQ(message(Shape(PipelineSchedule::kGPipe, 4, 0), 298),
            "each of pipeline 4, micro-batches 0, chunks 1 must be 1 or more");
  EXPECT_TRUE(MakePipelineSchedule(Shape(PipelineSchedule::kInterleaved, 4, 8, 2), 8).ok());
}

// Whatever is left out, doubled or put before what it needs is found.
TEST(CheckListsTest, FindsEveryFault) {
  for (const PipelineShape& shape :
       {Shape(PipelineSchedule::k1F1B, 3, 4), Shape(PipelineSchedule::kInterleaved, 2, 4, 2)}) {
    const std::vector<PipelineList> good = Lists(shape);
    for (int stage = 0; stage < shape.stages; ++stage) {
      for (size_t i = 0; i < good[stage].size(); ++i) {
        std::vector<PipelineList> lists = good;
        lists[stage].erase(lists[stage].begin() + i);
        EXPECT_FALSE(CheckPipelineLists(shape, lists).ok()) << stage << " without " << i;
        lists = good;
        lists[stage].push_back(good[stage][i]);
        EXPECT_FALSE(CheckPipelineLists(shape, lists).ok()) << stage << " with two of " << i;
        lists = good;
        lists[stage][i].micro_batch = (lists[stage][i].micro_batch + 1) % shape.micro_batches;
        EXPECT_FALSE(CheckPipelineLists(shape, lists).ok());
      }
      std::vector<PipelineList> lists = good;
      std::reverse(lists[stage].begin(), lists[stage].end());
      EXPECT_FALSE(CheckPipelineLists(shape, lists).ok());
    }
  }
}

TEST(CheckListsTest, SaysWhatIsWrong) {
  const PipelineShape shape = Shape(PipelineSchedule::k1F1B, 2, 2);
  const auto message = [&](const std::vector<PipelineList>& lists) {
    return std::string(CheckPipelineLists(shape, lists).message());
  };
  std::vector<PipelineList> lists = Lists(shape);
  // Stage 1: a0<0 F0 a1<0 B0 g0>0 F1 B1 g1>0. Sending the gradient before it takes the activation
  // that stage 0 is sending would be right only if sends did not block.
  std::rotate(lists[1].begin() + 2, lists[1].begin() + 3, lists[1].begin() + 5);
  EXPECT_EQ(ToString(lists[1], shape), "a0<0 F0 B0 g0>0 a1<0 F1 B1 g1>0");
  EXPECT_EQ(message(lists), "with blocking sends the lists stop: stage 0 at a1>1, stage 1 at g0>0");
  EXPECT_TRUE(SimulatePipeline(shape, lists, UniformCosts(shape, 1, 2)).ok());

  lists = Lists(shape);
  std::swap(lists[0][0], lists[0][1]);
  EXPECT_EQ(message(lists), "stage 0 has a0>1 before F0");
  lists = Lists(shape);
  lists[0][1].peer = 0;
  EXPECT_EQ(message(lists), "stage 0 lacks a0>1");
  lists = Lists(shape);
  lists[1].pop_back();
  EXPECT_EQ(message(lists), "stage 1 lacks g1>0");
  lists.pop_back();
  EXPECT_EQ(message(lists), "there are 1 lists for 2 stages");
}

// Backwards in an order that needs the other stage's later work.
TEST(SimulateTest, StopsWhenNothingCanRun) {
  const PipelineShape shape = Shape(PipelineSchedule::kGPipe, 2, 1);
  std::vector<PipelineList> lists = Lists(shape);
  std::reverse(lists[0].begin(), lists[0].end());
  EXPECT_EQ(SimulatePipeline(shape, lists, UniformCosts(shape, 1, 2)).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace fathom
