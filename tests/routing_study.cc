// What routing does in short runs on real text, with figures: does the token-choice bias keep
// layers from choosing the same tokens, and which alignment of the auxiliary loss leaves the
// smaller gap between top-k and causal routing? The figures in docs/routing.md come from here.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "core/file.h"
#include "nlohmann/json.hpp"
#include "runtime/checkpoint/safetensors.h"
#include "runtime/testing/failing_files.h"
#include "runtime/testing/toy_run.h"

namespace fathom {
namespace {

// The selection of each sparse layer in the dumped step: layer -> sequence -> positions.
std::map<int64_t, std::vector<std::set<int64_t>>> ReadSelection(const std::string& dump) {
  const auto file =
      SafetensorsFile::Open(PosixFileSystem(), JoinPath(dump, "selection.safetensors"));
  FATHOM_CHECK(file.ok()) << file.status().message();
  std::map<int64_t, std::vector<std::set<int64_t>>> selection;
  for (const NamedArray& array : (*file)->tensors()) {
    const int64_t layer = std::stoll(array.name.substr(std::strlen("model.layers.")));
    std::vector<int64_t> positions(array.shape.elements());
    std::memcpy(positions.data(), array.data, array.bytes());
    const int64_t k = array.shape[1];
    for (int64_t sequence = 0; sequence < array.shape[0]; ++sequence) {
      selection[layer].emplace_back(positions.begin() + sequence * k,
                                    positions.begin() + (sequence + 1) * k);
    }
  }
  return selection;
}

double Jaccard(const std::set<int64_t>& a, const std::set<int64_t>& b) {
  int64_t both = 0;
  for (int64_t x : a) both += b.count(x);
  return static_cast<double>(both) / static_cast<double>(a.size() + b.size() - both);
}

// Mean over sequences and pairs of sparse layers that follow each other directly.
double AdjacentJaccard(const std::string& dump) {
  const auto selection = ReadSelection(dump);
  double sum = 0;
  int64_t pairs = 0;
  for (const auto& [layer, sequences] : selection) {
    const auto next = selection.find(layer + 1);
    if (next == selection.end()) continue;
    for (size_t i = 0; i < sequences.size(); ++i) {
      sum += Jaccard(sequences[i], next->second[i]);
      ++pairs;
    }
  }
  return sum / static_cast<double>(pairs);
}

// A small A1K16: 2*D + 3*(16*S16 + D).
TEST(RoutingStudy, WithoutTheTokenChoiceBiasLayersChooseTheSameTokens) {
  const std::string directory = NewTestDirectory();
  const auto jaccard = [&](const std::string& name, const std::string& tau) {
    const ToyRun run =
        RunToy("toy_298", directory, name,
               {"model.plan=[{repeat: 2 dense {}}, {repeat: 3 group { plan { repeat: 16 sparse { "
                "sparsity: 16 } } plan { dense {} } }}]",
                "model.tau=" + tau, "train.steps=150", "train.sequence_length=256",
                "train.global_batch=8", "train.micro_batch=8", "checkpoint.every=0",
                "debug.dump_step=150", "debug.dump_dir=" + directory + "/" + name + "_dump"});
    FATHOM_CHECK(run.status.ok()) << run.status.message();
    return AdjacentJaccard(directory + "/" + name + "_dump");
  };
  const double full = jaccard("full", "1");
  const double without = jaccard("without", "0");
  // Two random choices of 16 of 256 tokens have 0.032.
  std::printf("Jaccard of adjacent layers after 150 steps: tau 1: %.4f, tau 0: %.4f\n", full,
              without);
  EXPECT_LT(full, 0.032);
  EXPECT_GT(without, 3 * 0.032);
  EXPECT_GT(without, 5 * full);
}

struct Gap {
  double topk;
  double causal;
};

Gap LastValidation(const std::string& run) {
  const auto text = ReadFile(PosixFileSystem(), JoinPath(run, "metrics.jsonl"));
  FATHOM_CHECK(text.ok()) << text.status().message();
  Gap last{};
  std::istringstream lines(*text);
  for (std::string line; std::getline(lines, line);) {
    const nlohmann::json record = nlohmann::json::parse(line);
    if (record["kind"] == "validation") last = {record["loss_topk"], record["loss_causal"]};
  }
  return last;
}

TEST(RoutingStudy, TheGapBetweenTopKAndCausalRoutingForBothAlignments) {
  const std::string directory = NewTestDirectory();
  std::map<std::string, double> gaps;
  for (const std::string alignment : {"BIASED", "RAW"}) {
    const ToyRun run =
        RunToy("quickstart", directory, alignment,
               {"model.alignment=" + alignment, "train.steps=200", "train.sequence_length=256",
                "train.global_batch=16", "train.micro_batch=16", "train.validation_sequences=64",
                "train.validate_every=0", "checkpoint.every=0"});
    ASSERT_TRUE(run.status.ok()) << run.status;
    const Gap gap = LastValidation(JoinPath(directory, alignment));
    gaps[alignment] = gap.causal - gap.topk;
    std::printf("alignment %-6s after 200 steps: top-k %.4f, causal %.4f, gap %.4f\n",
                alignment.c_str(), gap.topk, gap.causal, gaps[alignment]);
  }
  // Neither is clearly better in so short a run; both must have learned where the border is.
  for (const auto& [alignment, gap] : gaps) EXPECT_LT(std::abs(gap), 0.06) << alignment;
}

}  // namespace
}  // namespace fathom
