#include "runtime/pipeline_report.h"

#include <gtest/gtest.h>

#include "absl/strings/str_format.h"

namespace fathom {
namespace {

// Four equal layers and, at d 8, H*h 8, G*h 4, F 8, V 257 and L 8, a head of 2*8*257 = 4112 FLOPs
// beside 2*(8*8 + 2*4*8 + 8*8 + 3*8*8) + 4*8*(8*9/2)/8 = 912 of each layer.
std::string Line(const std::vector<std::string>& overrides) {
  const auto job = ParseJob(
      "model { d: 8 heads: 4 kv_heads: 2 head_dim: 2 ffn: 8 vocabulary: 257 plan { repeat: 4 dense "
      "{} } } train { steps: 1 sequence_length: 8 global_batch: 8 } data { text: \"none\" }",
      "job", overrides);
  EXPECT_TRUE(job.ok()) << job.status();
  const auto line = DescribePipeline(*job);
  EXPECT_TRUE(line.ok()) << line.status();
  return *line;
}

TEST(PipelineReport, OneStageHasNothingToSay) { EXPECT_EQ(Line({}), ""); }

TEST(PipelineReport, StagesAreCutByCostAndTheBubbleFollows) {
  // Stage times of a micro-batch, forward and backward: 3 * 3 * 912 and 3 * (912 + 4112). The
  // second one works without a break once the first has sent its first activation, 3 * 912, and
  // ends before the first one's last backward, 2 * 3 * 912.
  const double first = 3 * 912, second = 912 + 4112;
  const double length = first + 8 * 3 * second + 2 * first;
  const double idle = 1 - (8 * 3 * (first + second)) / (2 * length);
  EXPECT_EQ(Line({"parallel.pipeline=2"}),
            absl::StrFormat("pipeline: stages of layers 0-2, 3-3; 1F1B with 8 micro-batches leaves "
                            "them idle %.1f%% of the time",
                            100 * idle));
}

TEST(PipelineReport, ChunksAndSchedulesAreNamed) {
  const std::string gpipe = Line({"parallel.pipeline=4", "parallel.schedule=GPIPE"});
  EXPECT_NE(gpipe.find("layers 0-0, 1-1, 2-2, 3-3; GPipe with 8 micro-batches"), std::string::npos)
      << gpipe;
  const std::string interleaved =
      Line({"parallel={pipeline: 2 schedule: INTERLEAVED "
            "virtual_stages: 2 lanes: 2}"});
  EXPECT_NE(interleaved.find("layers 0-0 and 2-2, 1-1 and 3-3; interleaved 1F1B with 4 "),
            std::string::npos)
      << interleaved;
}

}  // namespace
}  // namespace fathom
