// A run that goes on in another layout is the run that was never interrupted; in the same layout to
// the bit.

#include <gtest/gtest.h>

#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"
#include "runtime/comparison.h"
#include "runtime/data/prepare.h"
#include "runtime/data/tokenizer.h"
#include "runtime/testing/failing_files.h"
#include "runtime/testing/toy_run.h"

namespace fathom {
namespace {

using Settings = std::vector<std::string>;

Settings operator+(Settings a, const Settings& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

const Settings kFour = {"train.precision=FP64", "train.global_batch=8", "train.micro_batch=1",
                        "train.steps=4",        "checkpoint.every=2",   "optimizer.clip=0.5"};

const std::map<std::string, Settings>& Layouts() {
  static const auto& layouts = *new std::map<std::string, Settings>{
      {"one", {}},
      {"T2", {"parallel.tensor=2"}},
      {"T4", {"parallel.tensor=4"}},
      {"T2P2", {"parallel.tensor=2", "parallel.pipeline=2"}},
      {"T2Sequence", {"parallel.tensor=2", "parallel.sequence=true"}},
      {"P2", {"parallel.pipeline=2"}},
      {"P3", {"parallel.pipeline=3"}},
      {"P2Interleaved",
       {"parallel.pipeline=2", "parallel.schedule=INTERLEAVED", "parallel.virtual_stages=2"}},
      {"D2", {"parallel.data=2"}},
      {"D4Zero", {"parallel.data=4", "parallel.zero=1", "parallel.bucket_elements=30000"}},
      {"Lanes", {"parallel.lanes=4"}},
      {"All",
       {"parallel.pipeline=2", "parallel.data=2", "parallel.tensor=2", "parallel.zero=1",
        "parallel.sequence=true", "parallel.lanes=2"}},
      {"D4E4", {"parallel.data=4", "parallel.expert=4"}},
      {"D2E2Zero", {"parallel.data=2", "parallel.expert=2", "parallel.zero=1"}},
      {"T2E2Sequence", {"parallel.tensor=2", "parallel.sequence=true", "parallel.expert=2"}},
      {"D2T2E2OverTensor",
       {"parallel.data=2", "parallel.tensor=2", "parallel.expert=2",
        "parallel.expert_tensor=true"}},
      {"AllE",
       {"parallel.pipeline=2", "parallel.data=2", "parallel.tensor=2", "parallel.expert=4",
        "parallel.zero=1", "parallel.sequence=true", "parallel.lanes=2"}},
  };
  return layouts;
}

std::string Directory() {
  static const auto& directory = *new std::string(NewTestDirectory());
  return directory;
}

// A run of four steps that saves after two, unless the settings say otherwise; resumed after
// `resume_after` steps, if that is not 0.
void Train(const std::string& job, const std::string& output, const Settings& settings,
           int resume_after = 0) {
  const bool resume = resume_after > 0;
  if (resume) {
    WriteTestFile(JoinPath(Directory(), output + "/LATEST"),
                  absl::StrFormat("step_%08d\n", resume_after));
  }
  const ToyRun run = RunToy(job, Directory(), output, kFour + settings, {.resume = resume});
  ASSERT_TRUE(run.status.ok()) << run.status;
}

// The run of one rank that was never interrupted.
std::string Whole(const std::string& job, const Settings& settings) {
  static auto& names = *new std::map<Settings, std::string>();
  const auto [name, is_new] =
      names.try_emplace(Settings{job} + settings, absl::StrCat("whole_", names.size()));
  if (is_new) Train(job, name->second, settings);
  return name->second;
}

void ExpectSame(const std::string& a, const std::string& b, double tolerance) {
  const auto comparison =
      Compare(PosixFileSystem(), JoinPath(Directory(), a), JoinPath(Directory(), b), tolerance);
  ASSERT_TRUE(comparison.ok()) << comparison.status();
  EXPECT_GT(comparison->tensors, 20);
  EXPECT_EQ(comparison->beyond, 0)
      << comparison->differences[0].where << ": " << comparison->differences[0].what;
}

struct Move {
  const char* job;
  const char* from;
  const char* to;
  const char* optimizer = "MUON";
};

class Moves : public ::testing::TestWithParam<Move> {};

TEST_P(Moves, TheRunGoesOn) {
  const Move& move = GetParam();
  const Settings optimizer = {std::string("optimizer.kind=") + move.optimizer};
  const std::string output =
      absl::StrCat("moved_", move.job, "_", move.from, "_", move.to, "_", move.optimizer);
  Train(move.job, output, Layouts().at(move.from) + optimizer);
  Train(move.job, output, Layouts().at(move.to) + optimizer, /*resume_after=*/2);
  ExpectSame(output, Whole(move.job, optimizer), 1e-9);
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, Moves,
    ::testing::Values(Move{"toy_xmod", "one", "T4"}, Move{"toy_xmod", "T4", "T2P2"},
                      Move{"toy_xmod", "P3", "one"}, Move{"toy_xmod", "P2Interleaved", "P2"},
                      Move{"toy_xmod", "P2", "P2Interleaved"}, Move{"toy_xmod", "D4Zero", "D2"},
                      Move{"toy_xmod", "D2", "D4Zero", "ADAMW"},
                      Move{"toy_xmod", "T2Sequence", "T2"}, Move{"toy_xmod", "T2", "T2Sequence"},
                      Move{"toy_xmod", "Lanes", "All"}, Move{"toy_xmod", "All", "one"},
                      Move{"toy_xmod", "All", "T4", "ADAMW"}, Move{"toy_mod", "T2P2", "D4Zero"},
                      Move{"toy_mod", "one", "All"}, Move{"toy_dense", "D4Zero", "T2Sequence"},
                      Move{"toy_dense", "P3", "All", "ADAMW"},
                      Move{"toy_moe_xmod", "D4E4", "D2E2Zero"}, Move{"toy_moe", "D2E2Zero", "one"},
                      Move{"toy_moe", "one", "T2E2Sequence", "ADAMW"},
                      Move{"toy_moe_xmod", "AllE", "D2T2E2OverTensor"},
                      Move{"toy_moe_xmod", "D2T2E2OverTensor", "T2"}),
    [](const ::testing::TestParamInfo<Move>& info) {
      const Move& move = info.param;
      return absl::StrCat(move.job, "_", move.from, "_", move.to, "_", move.optimizer);
    });

// A job in a layout.
class SameLayout : public ::testing::TestWithParam<std::pair<const char*, const char*>> {};

// The records of a run's steps, without what differs between two runs of the same numbers.
std::vector<nlohmann::json> Metrics(const std::string& output) {
  const auto text = ReadFile(PosixFileSystem(), JoinPath(Directory(), output + "/metrics.jsonl"));
  EXPECT_TRUE(text.ok()) << text.status();
  std::vector<nlohmann::json> records;
  std::istringstream lines(*text);
  for (std::string line; std::getline(lines, line);) {
    nlohmann::json record = nlohmann::json::parse(line);
    record.erase("tokens_per_second");
    record.erase("seconds");
    records.push_back(record);
  }
  return records;
}

// Ten steps, and five, a stop and five more, with saves in the background, which are the same, too.
void ExpectTheSameBits(const std::string& job, const std::string& layout, const std::string& name) {
  for (const char* kind : {"MUON", "ADAMW"}) {
    const Settings settings =
        Layouts().at(layout) + Settings{std::string("optimizer.kind=") + kind,
                                        "train.precision=BF16", "data.document_mask=true",
                                        "train.steps=10", "checkpoint.every=5"};
    const std::string whole = name + kind;
    const std::string parts = whole + "_parts";
    Train(job, whole, settings + Settings{"checkpoint.async=false"});
    Train(job, parts, settings + Settings{"checkpoint.every=1"});
    ExpectSame(parts + "/step_00000005", whole + "/step_00000005", 0);
    Train(job, parts, settings, /*resume_after=*/5);
    ExpectSame(parts, whole, 0);
    EXPECT_EQ(Metrics(parts), Metrics(whole));
  }
}

TEST_P(SameLayout, TheSameBits) {
  const auto& [job, layout] = GetParam();
  ExpectTheSameBits(job, layout, absl::StrCat("same_", layout));
}

// The same where samples come from several files.
TEST(Resume, ABlendGoesOn) {
  const auto text = ReadFile(PosixFileSystem(), "launch/jobs/text/toy.txt");
  ASSERT_TRUE(text.ok()) << text.status();
  std::string job = *ReadFile(PosixFileSystem(), "launch/jobs/toy_moe_xmod.txtpb");
  std::string blend;
  for (const char* name : {"first", "second"}) {
    const size_t half = text->size() / 2;
    const std::string path = JoinPath(Directory(), name);
    WriteTestFile(path, text->substr(name == std::string("first") ? 0 : half, half));
    const auto prepared = PrepareTokens(PosixFileSystem(), {path}, **MakeTokenizer("bytes"),
                                        path + ".tokens", PrepareOptions());
    ASSERT_TRUE(prepared.ok()) << prepared.status();
    absl::StrAppend(&blend, "  blend { path: \"", path, ".tokens\" weight: ", blend.size() + 1,
                    " }\n");
  }
  absl::StrAppend(&blend, "  validation: \"", JoinPath(Directory(), "second.tokens"), "\"\n");
  const std::string of_text = "  text: \"text/toy.txt\"\n  validation_fraction: 0.05\n";
  const size_t at = job.find(of_text);
  ASSERT_NE(at, std::string::npos);
  const std::string path = JoinPath(Directory(), "blend.txtpb");
  WriteTestFile(path, job.replace(at, of_text.size(), blend));
  ExpectTheSameBits(path, "D2E2Zero", "blend_");
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, SameLayout,
    ::testing::Values(std::pair("toy_moe_xmod", "one"), std::pair("toy_xmod", "T4"),
                      std::pair("toy_mod", "T2P2"), std::pair("toy_moe_xmod", "T2E2Sequence"),
                      std::pair("toy_xmod", "P2Interleaved"), std::pair("toy_moe", "D4E4"),
                      std::pair("toy_dense", "D4Zero"), std::pair("toy_moe_xmod", "AllE")),
    [](const auto& info) { return absl::StrCat(info.param.first, "_", info.param.second); });

}  // namespace
}  // namespace fathom
