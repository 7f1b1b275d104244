// Every layout is the same run: loss, gradient norm, gradients and weights against one rank, by
// position, in float64.
#include <gtest/gtest.h>

#include <map>

#include "runtime/comparison.h"
#include "runtime/testing/failing_files.h"
#include "runtime/testing/toy_run.h"

namespace fathom {
namespace {

constexpr double kTolerance = 1e-9;

// Runs by what they were made from, so that layouts share the run of one rank.
class Runs {
 public:
  // The directory of a run with a dump of `step`, its last one.
  static std::string Path(const std::string& job, int step,
                          const std::vector<std::string>& overrides) {
    static auto& runs = *new std::map<std::vector<std::string>, std::string>();
    static const std::string& directory = *new std::string(NewTestDirectory());
    std::vector<std::string> key = {job, absl::StrCat(step)};
    key.insert(key.end(), overrides.begin(), overrides.end());
    auto [found, is_new] = runs.try_emplace(key, absl::StrCat("run_", runs.size()));
    const std::string path = JoinPath(directory, found->second);
    if (!is_new) return path;
    std::vector<std::string> all = {"train.precision=FP64",
                                    "train.global_batch=8",
                                    "train.micro_batch=1",
                                    "train.validation_sequences=4",
                                    "checkpoint.every=0",
                                    "model.routing_coefficient=0.01",
                                    absl::StrCat("train.steps=", step),
                                    absl::StrCat("debug.dump_step=", step),
                                    "debug.dump_dir=" + JoinPath(path, "dump")};
    all.insert(all.end(), overrides.begin(), overrides.end());
    const ToyRun run = RunToy(job, directory, found->second, all);
    EXPECT_TRUE(run.status.ok()) << run.status;
    return path;
  }
};

void ExpectSame(const std::string& a, const std::string& b, double tolerance) {
  const auto comparison = Compare(PosixFileSystem(), a, b, tolerance);
  ASSERT_TRUE(comparison.ok()) << comparison.status();
  EXPECT_GT(comparison->tensors, 0);
  int shown = 0;
  for (const Difference& difference : comparison->differences) {
    if (!difference.beyond && tolerance > 0) continue;
    if (++shown > 5) break;
    ADD_FAILURE() << difference.where << ": " << difference.what;
  }
}

struct Layout {
  const char* name;
  std::vector<std::string> overrides;
};

const std::vector<Layout>& Layouts() {
  static const auto& layouts = *new std::vector<Layout>{
      {"T2", {"parallel.tensor=2"}},
      {"T4", {"parallel.tensor=4"}},
      {"T8", {"parallel.tensor=8"}},
      {"T2Sequence", {"parallel.tensor=2", "parallel.sequence=true"}},
      {"T4Sequence", {"parallel.tensor=4", "parallel.sequence=true"}},
      {"D2", {"parallel.data=2"}},
      {"D4", {"parallel.data=4"}},
      {"D8", {"parallel.data=8"}},
      {"D2Zero", {"parallel.data=2", "parallel.zero=1"}},
      {"D4Zero", {"parallel.data=4", "parallel.zero=1", "parallel.bucket_elements=30000"}},
      {"D8Zero", {"parallel.data=8", "parallel.zero=1"}},
      {"P2GPipe", {"parallel.pipeline=2", "parallel.schedule=GPIPE"}},
      {"P3GPipe", {"parallel.pipeline=3", "parallel.schedule=GPIPE"}},
      {"P4GPipe", {"parallel.pipeline=4", "parallel.schedule=GPIPE"}},
      {"P2", {"parallel.pipeline=2"}},
      {"P3", {"parallel.pipeline=3"}},
      {"P4", {"parallel.pipeline=4"}},
      {"P2Interleaved",
       {"parallel.pipeline=2", "parallel.schedule=INTERLEAVED", "parallel.virtual_stages=2"}},
      {"P2D2T2", {"parallel.pipeline=2", "parallel.data=2", "parallel.tensor=2"}},
      {"P2D2T2All",
       {"parallel.pipeline=2", "parallel.data=2", "parallel.tensor=2", "parallel.zero=1",
        "parallel.sequence=true", "parallel.lanes=2", "parallel.bucket_elements=30000"}},
      {"Lanes2", {"parallel.lanes=2"}},
      {"T2Lanes2", {"parallel.tensor=2", "parallel.lanes=2"}},
      {"D2Lanes2", {"parallel.data=2", "parallel.lanes=2"}},
      {"P2Lanes2", {"parallel.pipeline=2", "parallel.lanes=2"}},
  };
  return layouts;
}

class LayoutsTest : public ::testing::TestWithParam<std::tuple<std::string, Layout>> {};

TEST_P(LayoutsTest, IsTheRunOfOneRank) {
  const auto& [job, layout] = GetParam();
  for (const int step : {1, 5}) {
    const std::string one = Runs::Path(job, step, {});
    const std::string many = Runs::Path(job, step, layout.overrides);
    ExpectSame(JoinPath(many, "dump"), JoinPath(one, "dump"), kTolerance);
    ExpectSame(many, one, kTolerance);
  }
}

INSTANTIATE_TEST_SUITE_P(Toys, LayoutsTest,
                         ::testing::Combine(::testing::Values("toy_dense", "toy_mod", "toy_xmod"),
                                            ::testing::ValuesIn(Layouts())),
                         [](const auto& info) {
                           return std::get<0>(info.param) + "_" + std::get<1>(info.param).name;
                         });

}  // namespace
}  // namespace fathom
