// Every layout is the same run: loss, gradient norm, gradients and weights against one rank, by
// position, in float64.
#include <gtest/gtest.h>

#include <map>
#include <mutex>
#include <set>
#include <sstream>

#include "nlohmann/json.hpp"
#include "runtime/checksum.h"
#include "runtime/comparison.h"
#include "runtime/run_state.h"
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
    static const std::string& directory = *new std::string(NewTestDirectory());
    static int count = 0;
    const auto [found, is_new] = All().try_emplace(Key(job, step, overrides), "");
    if (is_new) found->second = absl::StrCat("run_", count++);
    const std::string path = JoinPath(directory, found->second);
    if (!is_new) return path;
    std::vector<std::string> all = {"train.precision=FP64",
                                    "train.global_batch=8",
                                    "train.micro_batch=1",
                                    "train.validation_sequences=4",
                                    "checkpoint.every=0",
                                    "model.routing_coefficient=0.01",
                                    "model.balance_coefficient=0.02",
                                    absl::StrCat("train.steps=", step),
                                    absl::StrCat("debug.dump_step=", step),
                                    "debug.dump_dir=" + JoinPath(path, "dump")};
    all.insert(all.end(), overrides.begin(), overrides.end());
    const ToyRun run = RunToy(job, directory, found->second, all);
    EXPECT_TRUE(run.status.ok()) << run.status;
    return path;
  }

  // Removes a run that nobody needs any more: those of deep models are large.
  static void Remove(const std::string& job, int step, const std::vector<std::string>& overrides) {
    EXPECT_TRUE(PosixFileSystem().RemoveAll(Path(job, step, overrides)).ok());
    All().erase(Key(job, step, overrides));
  }

 private:
  using KeyType = std::vector<std::string>;

  static KeyType Key(const std::string& job, int step, const std::vector<std::string>& overrides) {
    KeyType key = {job, absl::StrCat(step)};
    key.insert(key.end(), overrides.begin(), overrides.end());
    return key;
  }
  // The runs' names.
  static std::map<KeyType, std::string>& All() {
    static auto& runs = *new std::map<KeyType, std::string>();
    return runs;
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

// The losses of a run's validations, before the first step and after the last.
std::vector<double> ValidationLosses(const std::string& run) {
  const auto text = ReadFile(PosixFileSystem(), JoinPath(run, "metrics.jsonl"));
  EXPECT_TRUE(text.ok()) << text.status();
  std::vector<double> losses;
  std::istringstream lines(*text);
  for (std::string line; std::getline(lines, line);) {
    const auto record = nlohmann::json::parse(line);
    if (record["kind"] != "validation") continue;
    losses.push_back(record["loss_topk"]);
    losses.push_back(record["loss_causal"]);
  }
  return losses;
}

void ExpectSameValidation(const std::string& a, const std::string& b, double tolerance) {
  const std::vector<double> of_a = ValidationLosses(a), of_b = ValidationLosses(b);
  ASSERT_EQ(of_a.size(), 4);
  ASSERT_EQ(of_b.size(), 4);
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(of_a[i], of_b[i], tolerance) << i;
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

// Of models with experts: shared out over data, tensor and both kinds of ranks, whole and by their
// width, with everything else besides.
const std::vector<Layout>& ExpertLayouts() {
  static const auto& layouts = *new std::vector<Layout>{
      {"T2", {"parallel.tensor=2"}},
      {"T4Sequence", {"parallel.tensor=4", "parallel.sequence=true"}},
      {"D4Zero", {"parallel.data=4", "parallel.zero=1", "parallel.bucket_elements=30000"}},
      {"P2", {"parallel.pipeline=2"}},
      {"D2E2", {"parallel.data=2", "parallel.expert=2"}},
      {"D4E4Zero", {"parallel.data=4", "parallel.expert=4", "parallel.zero=1"}},
      {"D4E2Zero",
       {"parallel.data=4", "parallel.expert=2", "parallel.zero=1",
        "parallel.bucket_elements=30000"}},
      {"T2E2", {"parallel.tensor=2", "parallel.expert=2"}},
      {"T4SequenceE4", {"parallel.tensor=4", "parallel.sequence=true", "parallel.expert=4"}},
      {"T2SequenceE2", {"parallel.tensor=2", "parallel.sequence=true", "parallel.expert=2"}},
      {"D2T2E4", {"parallel.data=2", "parallel.tensor=2", "parallel.expert=4"}},
      {"D2T2E2", {"parallel.data=2", "parallel.tensor=2", "parallel.expert=2"}},
      {"P2E2D2", {"parallel.pipeline=2", "parallel.data=2", "parallel.expert=2"}},
      {"P2InterleavedE2",
       {"parallel.pipeline=2", "parallel.schedule=INTERLEAVED", "parallel.virtual_stages=2",
        "parallel.tensor=2", "parallel.expert=2"}},
      {"E2Lanes2", {"parallel.data=2", "parallel.expert=2", "parallel.lanes=2"}},
      {"T2OverTensor", {"parallel.tensor=2", "parallel.expert_tensor=true"}},
      {"D2T2E2OverTensor",
       {"parallel.data=2", "parallel.tensor=2", "parallel.expert=2",
        "parallel.expert_tensor=true"}},
      {"D4T2E2OverTensorAll",
       {"parallel.data=4", "parallel.tensor=2", "parallel.expert=2", "parallel.expert_tensor=true",
        "parallel.zero=1", "parallel.sequence=true", "parallel.lanes=2"}},
      {"P2D2T2E4All",
       {"parallel.pipeline=2", "parallel.data=2", "parallel.tensor=2", "parallel.expert=4",
        "parallel.zero=1", "parallel.sequence=true", "parallel.lanes=2",
        "parallel.bucket_elements=30000"}},
      {"D4T2E4Zero",
       {"parallel.data=4", "parallel.tensor=2", "parallel.expert=4", "parallel.zero=1"}},
  };
  return layouts;
}

class LayoutsTest : public ::testing::TestWithParam<std::tuple<std::string, Layout>> {};
class LayoutsInFp32 : public LayoutsTest {};

TEST_P(LayoutsTest, IsTheRunOfOneRank) {
  const auto& [job, layout] = GetParam();
  for (const int step : {1, 5}) {
    const std::string one = Runs::Path(job, step, {});
    const std::string many = Runs::Path(job, step, layout.overrides);
    ExpectSame(JoinPath(many, "dump"), JoinPath(one, "dump"), kTolerance);
    ExpectSame(many, one, kTolerance);
    ExpectSameValidation(many, one, kTolerance);
    if (step == 1) {
      const char* initial = "dump/weights_before.safetensors";
      ExpectSame(JoinPath(many, initial), JoinPath(one, initial), 0);
    }
    Runs::Remove(job, step, layout.overrides);
  }
}

// In float32 a near-tie may fall the other way, so the selection is replayed.
TEST_P(LayoutsInFp32, FirstStepIsThatOfOneRank) {
  const auto& [job, layout] = GetParam();
  const std::string one = Runs::Path(job, 1, {"train.precision=FP32"});
  std::vector<std::string> overrides = layout.overrides;
  overrides.push_back("train.precision=FP32");
  if (job != "toy_dense") overrides.push_back("debug.selection_file=" + JoinPath(one, "dump"));
  const std::string many = Runs::Path(job, 1, overrides);
  const auto comparison =
      Compare(PosixFileSystem(), JoinPath(many, "dump"), JoinPath(one, "dump"), 0);
  ASSERT_TRUE(comparison.ok()) << comparison.status();
  for (const Difference& difference : comparison->differences) {
    const std::string& where = difference.where;
    if (where.rfind("gradients", 0) == 0) {
      EXPECT_LE(difference.relative, 1e-4) << where << ": " << difference.what;
    } else if (where == "step.json: loss" || where == "step.json: gradient_norm") {
      EXPECT_LE(difference.relative, 1e-5) << where << ": " << difference.what;
    } else {
      // The update may turn rounding into more, Adam's first step above all.
      EXPECT_TRUE(where.rfind("weights_after", 0) == 0 || where.rfind("step.json", 0) == 0)
          << where << ": " << difference.what;
    }
  }
}

std::string NameOf(const ::testing::TestParamInfo<std::tuple<std::string, Layout>>& info) {
  return std::get<0>(info.param) + "_" + std::get<1>(info.param).name;
}

INSTANTIATE_TEST_SUITE_P(Toys, LayoutsTest,
                         ::testing::Combine(::testing::Values("toy_dense", "toy_mod", "toy_xmod"),
                                            ::testing::ValuesIn(Layouts())),
                         NameOf);
// Layouts with these names, or all others.
std::vector<Layout> Chosen(const std::vector<Layout>& all, const std::set<std::string>& names,
                           bool others = false) {
  std::vector<Layout> layouts;
  for (const Layout& layout : all) {
    if ((names.count(layout.name) > 0) != others) layouts.push_back(layout);
  }
  return layouts;
}

// The mixture has layers with nothing but experts, too.
INSTANTIATE_TEST_SUITE_P(Experts, LayoutsTest,
                         ::testing::Combine(::testing::Values("toy_moe_xmod"),
                                            ::testing::ValuesIn(ExpertLayouts())),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(Experts, LayoutsInFp32,
                         ::testing::Combine(::testing::Values("toy_moe_xmod"),
                                            ::testing::ValuesIn(Chosen(ExpertLayouts(),
                                                                       {"D2E2", "T4SequenceE4",
                                                                        "D2T2E2OverTensor",
                                                                        "P2D2T2E4All"}))),
                         NameOf);
// For tests/full.
INSTANTIATE_TEST_SUITE_P(Deep, LayoutsTest,
                         ::testing::Combine(::testing::Values("toy_moe"),
                                            ::testing::ValuesIn(ExpertLayouts())),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(Toys, LayoutsInFp32,
                         ::testing::Combine(::testing::Values("toy_xmod"),
                                            ::testing::ValuesIn(Layouts())),
                         NameOf);
// Layouts that between them have everything.
const std::set<std::string>& DeepLayouts() {
  static const auto& names =
      *new std::set<std::string>{"T8", "T4Sequence",    "D2",        "D8Zero",  "P3GPipe",
                                 "P4", "P2Interleaved", "P2D2T2All", "T2Lanes2"};
  return names;
}

// Ten minutes: tests/full runs it.
INSTANTIATE_TEST_SUITE_P(Deep298, LayoutsTest,
                         ::testing::Combine(::testing::Values("toy_298"),
                                            ::testing::ValuesIn(Chosen(Layouts(), DeepLayouts()))),
                         NameOf);
// As long again; by hand.
INSTANTIATE_TEST_SUITE_P(DeepRest, LayoutsTest,
                         ::testing::Combine(::testing::Values("toy_298"),
                                            ::testing::ValuesIn(Chosen(Layouts(), DeepLayouts(),
                                                                       /*others=*/true))),
                         NameOf);

std::vector<std::string> Everything(const std::string& lanes) {
  return {"parallel.pipeline=2",
          "parallel.data=2",
          "parallel.tensor=2",
          "parallel.zero=1",
          "parallel.lanes=" + lanes,
          "train.precision=FP32",
          "parallel.bucket_elements=30000"};
}

TEST(Layouts, TwoRunsAreTheSameBits) {
  std::vector<std::string> again = Everything("2");
  again.push_back("train.watchdog_seconds=61");  // another key, the same run
  ExpectSame(Runs::Path("toy_xmod", 5, again), Runs::Path("toy_xmod", 5, Everything("2")), 0);
}

TEST(Layouts, LanesAreTheSameBits) {
  for (const std::string sequence : {"false", "true"}) {
    std::vector<std::string> one = Everything("1"), two = Everything("2");
    one.push_back("parallel.sequence=" + sequence);
    two.push_back("parallel.sequence=" + sequence);
    ExpectSame(Runs::Path("toy_xmod", 5, two), Runs::Path("toy_xmod", 5, one), 0);
    one.push_back("parallel.expert=2");
    two.push_back("parallel.expert=2");
    ExpectSame(Runs::Path("toy_moe_xmod", 5, two), Runs::Path("toy_moe_xmod", 5, one), 0);
  }
}

TEST(Layouts, MicroBatchesDoNotMatter) {
  for (const std::string job : {"toy_xmod", "toy_moe_xmod"}) {
    const std::string one = Runs::Path(job, 5, {});
    for (const std::string size : {"2", "4", "8"}) {
      const std::string other = Runs::Path(job, 5, {"train.micro_batch=" + size});
      ExpectSame(JoinPath(other, "dump"), JoinPath(one, "dump"), kTolerance);
    }
    const std::string ranks = Runs::Path(job, 5, {"train.micro_batch=2", "parallel.data=4"});
    ExpectSame(JoinPath(ranks, "dump"), JoinPath(one, "dump"), kTolerance);
  }
}

// Sequences of eight tokens, of which a sparse layer sees two: ranks, and most experts, get none.
TEST(Layouts, MoreExpertsThanTokens) {
  const std::vector<std::string> base = {"train.sequence_length=8", "model.experts=16"};
  const std::string one = Runs::Path("toy_moe_xmod", 5, base);
  for (const std::vector<std::string>& layout : std::vector<std::vector<std::string>>{
           {"parallel.tensor=4", "parallel.expert=4"},
           {"parallel.tensor=4", "parallel.sequence=true", "parallel.expert=2"},
           {"parallel.data=4", "parallel.expert=4", "parallel.lanes=2"}}) {
    std::vector<std::string> overrides = base;
    overrides.insert(overrides.end(), layout.begin(), layout.end());
    const std::string many = Runs::Path("toy_moe_xmod", 5, overrides);
    ExpectSame(JoinPath(many, "dump"), JoinPath(one, "dump"), kTolerance);
    ExpectSameValidation(many, one, kTolerance);
  }
}

// Gradients that travel in bfloat16 lose bits, and no more than those of one rounding of each
// rank's and one of the sum.
TEST(Layouts, GradientsMayTravelInBfloat16) {
  const std::string one = Runs::Path("toy_xmod", 1, {});
  for (const std::string zero : {"0", "1"}) {
    const std::string rounded =
        Runs::Path("toy_xmod", 1,
                   {"parallel.data=2", "parallel.zero=" + zero, "parallel.gradient_reduce=BF16"});
    const auto comparison =
        Compare(PosixFileSystem(), JoinPath(rounded, "dump"), JoinPath(one, "dump"), 0);
    ASSERT_TRUE(comparison.ok()) << comparison.status();
    int gradients = 0;
    for (const Difference& difference : comparison->differences) {
      if (difference.where.rfind("gradients", 0) != 0) continue;
      ++gradients;
      EXPECT_LE(difference.relative, 3.0 / 256) << difference.where << ": " << difference.what;
    }
    EXPECT_GT(gradients, 10);
  }
}

// A stopped run goes on in another layout.
TEST(Layouts, AnyLayoutResumesAnother) {
  const std::string directory = NewTestDirectory();
  const std::vector<std::string> base = {"train.precision=FP64", "train.global_batch=8",
                                         "train.micro_batch=1", "train.steps=4"};
  const auto run = [&](const std::string& output, std::vector<std::string> overrides, bool resume) {
    overrides.insert(overrides.begin(), base.begin(), base.end());
    const ToyRun result = RunToy("toy_xmod", directory, output, overrides, {.resume = resume});
    EXPECT_TRUE(result.status.ok()) << result.status;
  };
  run("whole", {}, false);
  run("moved", {"parallel.data=4", "parallel.zero=1", "parallel.tensor=2"}, false);
  WriteTestFile(JoinPath(directory, "moved/LATEST"), "step_00000001\n");
  run("moved", {"parallel.data=2", "parallel.zero=1", "parallel.pipeline=2"}, true);
  ExpectSame(JoinPath(directory, "moved"), JoinPath(directory, "whole"), kTolerance);
  WriteTestFile(JoinPath(directory, "moved/LATEST"), "step_00000002\n");
  run("moved", {}, true);
  ExpectSame(JoinPath(directory, "moved"), JoinPath(directory, "whole"), kTolerance);
}

TEST(Layouts, ExpertsMoveToOtherRanks) {
  const std::string directory = NewTestDirectory();
  const std::vector<std::string> base = {"train.precision=FP64", "train.global_batch=8",
                                         "train.micro_batch=1", "train.steps=3"};
  const auto run = [&](const std::string& output, std::vector<std::string> overrides, bool resume) {
    overrides.insert(overrides.begin(), base.begin(), base.end());
    const ToyRun result = RunToy("toy_moe_xmod", directory, output, overrides, {.resume = resume});
    EXPECT_TRUE(result.status.ok()) << result.status;
  };
  run("whole", {}, false);
  run("moved", {"parallel.data=4", "parallel.expert=4", "parallel.zero=1"}, false);
  WriteTestFile(JoinPath(directory, "moved/LATEST"), "step_00000001\n");
  run("moved", {"parallel.data=2", "parallel.tensor=2", "parallel.expert=2", "parallel.zero=1"},
      true);
  ExpectSame(JoinPath(directory, "moved"), JoinPath(directory, "whole"), kTolerance);
  WriteTestFile(JoinPath(directory, "moved/LATEST"), "step_00000002\n");
  run("moved", {"parallel.tensor=2", "parallel.expert_tensor=true"}, true);
  ExpectSame(JoinPath(directory, "moved"), JoinPath(directory, "whole"), kTolerance);
}

// What several ranks hold is the same on all of them, to the bit.
void ExpectEqualReplicas(const std::string& job, std::vector<std::string> layout) {
  const std::string directory = NewTestDirectory();
  std::mutex mutex;
  std::map<std::string, std::set<uint64_t>> hashes;  // by parameter, before the update of step 11
  int64_t seen = 0;
  const ToyOptions options = {.before_update = [&](int, int64_t step,
                                                   const ParameterTable& parameters) {
    if (step != 11) return;
    const std::lock_guard lock(mutex);
    for (const Parameter& parameter : parameters.all()) {
      const std::string part = absl::StrCat(parameter.spec.name, " ", parameter.spec.part.begin);
      ChecksumStream checksum;
      checksum.Add({static_cast<const char*>(parameter.master.raw()),
                    static_cast<size_t>(parameter.master.bytes())});
      hashes[part].insert(checksum.value());
      ++seen;
    }
  }};
  layout.insert(layout.end(), {"train.steps=11", "train.global_batch=8", "train.micro_batch=1",
                               "parallel.zero=1", "checkpoint.every=0"});
  const ToyRun run = RunToy(job, directory, "run", layout, options);
  ASSERT_TRUE(run.status.ok()) << run.status;
  EXPECT_GT(seen, static_cast<int64_t>(2 * hashes.size()));
  for (const auto& [part, values] : hashes) EXPECT_EQ(values.size(), 1) << part;
}

TEST(Layouts, ReplicasStayTheSame) {
  ExpectEqualReplicas("toy_xmod",
                      {"parallel.tensor=4", "parallel.sequence=true", "parallel.data=2"});
  ExpectEqualReplicas("toy_moe_xmod", {"parallel.tensor=2", "parallel.sequence=true",
                                       "parallel.data=4", "parallel.expert=4"});
}

// The timeline shows lanes side by side and each group's collectives.
TEST(Layouts, ATimelineShowsLanesAndCollectives) {
  const std::string path =
      Runs::Path("toy_xmod", 5, {"parallel.tensor=2", "parallel.lanes=2", "debug.timeline_step=2"});
  for (const int rank : {0, 1}) {
    const auto text =
        ReadFile(PosixFileSystem(),
                 JoinPath(path, absl::StrCat("timeline_00000002_rank_000", rank, ".json")));
    ASSERT_TRUE(text.ok()) << text.status();
    const auto json = nlohmann::json::parse(*text);
    std::map<int, std::string> tracks;
    std::map<std::string, std::map<std::string, int>> spans;  // by track and name
    for (const auto& event : json["traceEvents"]) {
      if (event["name"] == "thread_name") tracks[event["tid"]] = event["args"]["name"];
    }
    for (const auto& event : json["traceEvents"]) {
      if (event["ph"] != "X") continue;
      EXPECT_EQ(event["pid"], rank);
      EXPECT_GE(event["dur"], 0);
      ++spans[tracks[event["tid"]]][event["name"]];
    }
    // Eight micro-batches in two lanes, eight layers with attention.
    for (const char* lane : {"lane 0", "lane 1"}) {
      EXPECT_EQ(spans[lane]["forward 0"], 1);
      EXPECT_EQ(spans[lane]["backward 3"], 1);
      EXPECT_EQ(spans[lane]["attention"], 4 * 8);
      EXPECT_EQ(spans[lane]["attention_backward"], 4 * 8);
    }
    EXPECT_GT(spans["group tensor"]["all-reduce"], 8 * 4 * 8);
    EXPECT_EQ(spans["group world"]["all-reduce"], 1);
    EXPECT_GT(spans["step"]["muon_apply"], 0);
  }
}

TEST(Layouts, StagesHoldEveryLayerOnce) {
  const auto job = ReadJob("launch/jobs/toy_298.txtpb", {});
  ASSERT_TRUE(job.ok()) << job.status();
  const std::set<std::string> names = ParameterNames(job->model);
  for (const int stages : {1, 2, 3, 4, 5, 7, 8}) {
    const auto parts = CutLayers(job->model, job->train.sequence_length, stages);
    ASSERT_TRUE(parts.ok()) << parts.status();
    int64_t next = 0;
    std::multiset<std::string> held;
    TensorGroup alone;
    ExpertGroup experts;
    for (const LayerRange& layers : *parts) {
      EXPECT_EQ(layers.begin, next);
      next = layers.end;
      ParameterTable table;
      const Stage stage(job->model, layers, alone, experts, table);
      for (const Parameter& parameter : table.all()) held.insert(parameter.spec.name);
      const std::string first = absl::StrCat("model.layers.", layers.begin, ".");
      EXPECT_TRUE(held.count(first + "mlp.up_proj.weight"));
      const bool sparse = job->model.plan.layers[layers.begin].spec.kind == LayerKind::kSparse;
      EXPECT_EQ(held.count(first + "depth_router.weight"), sparse ? 1 : 0);
    }
    EXPECT_EQ(next, 298);
    EXPECT_EQ(held.size(), names.size());
    EXPECT_EQ(std::set<std::string>(held.begin(), held.end()), names);
  }
}

// The jobs of 8 nodes of 8 GPUs, narrower and on shorter sequences: the same layers and layout.
void ExpectClusterJobIsThatOfOneRank(const std::string& job) {
  const std::vector<std::string> reduced = {"model.d=64",
                                            "model.heads=16",
                                            "model.kv_heads=8",
                                            "model.head_dim=8",
                                            "model.ffn=192",
                                            "model.expert_ffn=24",
                                            "model.vocabulary=257",
                                            "train.sequence_length=512",
                                            "train.global_batch=16",
                                            "checkpoint.keep_every=0",
                                            "data.train=",
                                            "data.validation=",
                                            "data.tokenizer=bytes",
                                            "data.text=launch/jobs/text/toy.txt",
                                            "data.validation_fraction=0.05"};
  std::vector<std::string> alone = reduced;
  alone.insert(alone.end(), {"parallel.tensor=1", "parallel.sequence=false", "parallel.data=1",
                             "parallel.expert=1", "parallel.zero=0", "parallel.lanes=1"});
  const std::string many = Runs::Path(job, 1, reduced);
  const std::string one = Runs::Path(job, 1, alone);
  ExpectSame(JoinPath(many, "dump"), JoinPath(one, "dump"), kTolerance);
  ExpectSame(many, one, kTolerance);
}

TEST(DeepCluster, TheXModJobOf64RanksIsThatOfOne) {
  ExpectClusterJobIsThatOfOneRank("1650m_xmod_a3k16_8x8");
}

TEST(DeepCluster, TheMoeJobOf64RanksIsThatOfOne) {
  ExpectClusterJobIsThatOfOneRank("1650m_moe_8_128_8x8");
}

}  // namespace
}  // namespace fathom
