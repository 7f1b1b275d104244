#include "launch/job_table.h"

#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "core/job.h"
#include "gtest/gtest.h"

namespace fathom {
namespace {

// Tests run at the root of the tree's copy.
const char kDirectory[] = "launch/jobs";

std::string Contents(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream contents;
  contents << file.rdbuf();
  return contents.str();
}

TEST(JobTableTest, TheTreeHoldsExactlyWhatTheTableWrites) {
  std::map<std::string, std::string> in_tree;
  for (const auto& entry : std::filesystem::directory_iterator(kDirectory)) {
    if (entry.path().extension() != ".txtpb") continue;
    in_tree[entry.path().stem().string()] = Contents(entry.path());
  }
  std::map<std::string, std::string> in_table;
  for (const JobFile& file : MakeJobFiles()) {
    EXPECT_TRUE(in_table.emplace(file.name, file.text).second) << file.name << " occurs twice";
  }
  EXPECT_EQ(in_tree, in_table) << "run bazel run //launch:write_jobs -- \"$PWD/launch/jobs\"";
}

TEST(JobTableTest, EveryJobValidates) {
  for (const JobFile& file : MakeJobFiles()) {
    const auto job = ReadJob(std::string(kDirectory) + "/" + file.name + ".txtpb", {});
    ASSERT_TRUE(job.ok()) << job.status().message();
    EXPECT_EQ(job->name, file.name);
    EXPECT_EQ(job->train.output, "runs/" + file.name);
  }
}

struct Expected {
  std::string plan;
  int64_t layers;
  double active_layers;
};

TEST(JobTableTest, PlansAreThoseOfTheirNames) {
  std::map<std::string, Expected> expected = {
      {"936m_xmod_a1k16_no_anchor", {"4*D + 384*S16", 388, 28}},
      {"936m_xmod_a1k16_no_gate", {"4*D + 12*(16*S16 + D)", 208, 28}},
      {"936m_xmod_a1k16_no_bias", {"4*D + 12*(16*S16 + D)", 208, 28}},
      {"936m_xmod_a1k16_no_prefix", {"14*(16*S16 + D)", 238, 28}},
      {"165m_deep_dense", {"52*D", 52, 52}},
      {"165m_deep_a1k4", {"4*D + 24*(4*S4 + D)", 124, 52}},
      {"165m_deep_a1k8", {"4*D + 24*(8*S8 + D)", 220, 52}},
      {"165m_deep_a1k12", {"4*D + 24*(12*S12 + D)", 316, 52}},
      {"165m_deep_a1k16", {"4*D + 24*(16*S16 + D)", 412, 52}},
      {"1650m_xmod_a3k16_8x8", {"4*D + 6*(48*S16 + D)", 298, 28}},
      {"toy_dense", {"4*D", 4, 4}},
      {"toy_mod", {"D + 2*(S4 + D)", 5, 3.5}},
      {"toy_xmod", {"2*D + 2*(2*S4 + D)", 8, 5}},
      {"toy_298", {"4*D + 6*(48*S16 + D)", 298, 28}},
      {"toy_412", {"4*D + 24*(16*S16 + D)", 412, 52}},
      {"toy_moe", {"4*E", 4, 4}},
      {"toy_moe_xmod", {"D + 2*(S4 + SE4 + E)", 7, 4}},
      {"1650m_moe_8_128_8x8", {"28*E", 28, 28}},
      {"quickstart", {"2*D + 2*(4*S4 + D)", 12, 6}},
  };
  for (const std::string size : {"165m", "298m", "556m", "936m", "1650m", "bench"}) {
    expected[size + "_dense"] = {"28*D", 28, 28};
    expected[size + "_xmod_a4k8"] = {"4*D + (24*S8 + D) + 4*(32*S8 + D)", 161, 28};
    expected[size + "_xmod_a3k16"] = {"4*D + 6*(48*S16 + D)", 298, 28};
    expected[size + "_moe_8_64"] = {"28*E", 28, 28};
    expected[size + "_moe_8_128"] = {"28*E", 28, 28};
    if (size == "bench") continue;
    expected[size + "_mod"] = {"D + 24*(S8 + D)", 49, 28};
    expected[size + "_xmod_a1k16"] = {"4*D + 12*(16*S16 + D)", 208, 28};
  }
  std::set<std::string> seen;
  for (const JobFile& file : MakeJobFiles()) {
    ASSERT_TRUE(expected.count(file.name)) << file.name;
    const Expected& want = expected[file.name];
    const auto job = ParseJob(file.text, file.name, {});
    ASSERT_TRUE(job.ok()) << job.status().message();
    EXPECT_EQ(ShortForm(job->model.plan.segments), want.plan) << file.name;
    EXPECT_EQ(job->model.plan.layers.size(), want.layers) << file.name;
    EXPECT_NEAR(job->model.plan.active_layers(), want.active_layers, 1e-9) << file.name;
    seen.insert(file.name);
  }
  EXPECT_EQ(seen.size(), expected.size());
}

TEST(JobTableTest, AblationsAndMoDDifferInTheirSettings) {
  for (const JobFile& file : MakeJobFiles()) {
    const auto job = ParseJob(file.text, file.name, {});
    ASSERT_TRUE(job.ok()) << job.status().message();
    const bool mod = file.name.ends_with("_mod") || file.name.ends_with("_no_gate");
    EXPECT_EQ(job->model.gate, mod ? Gate::kMod : Gate::kXMod) << file.name;
    EXPECT_EQ(job->model.tau, file.name.ends_with("_no_bias") ? 0 : 1) << file.name;
    EXPECT_EQ(job->model.reset_every, file.name.ends_with("_no_anchor") ? 16 : 0) << file.name;
  }
}

TEST(JobTableTest, MixturesAreThoseOfTheirNames) {
  const std::map<std::string, int64_t> widths = {{"165m", 192}, {"298m", 288},  {"556m", 384},
                                                 {"936m", 480}, {"1650m", 768}, {"bench", 192}};
  for (const JobFile& file : MakeJobFiles()) {
    const auto job = ParseJob(file.text, file.name, {});
    ASSERT_TRUE(job.ok()) << job.status().message();
    const ModelConfig& model = job->model;
    const bool toy = file.name.starts_with("toy_moe");
    const bool moe = toy || file.name.find("_moe_8_") != std::string::npos;
    EXPECT_EQ(model.plan.has_experts(), moe) << file.name;
    const bool many = file.name.find("_moe_8_128") != std::string::npos;
    EXPECT_EQ(model.experts, !moe ? 0 : toy ? 8 : many ? 128 : 64) << file.name;
    EXPECT_EQ(model.shared, moe ? 2 : 0) << file.name;
    EXPECT_EQ(model.routed, !moe ? 0 : toy ? 2 : 6) << file.name;
    if (!moe) continue;
    const std::string size = file.name.substr(0, file.name.find('_'));
    EXPECT_EQ(model.expert_ffn, toy ? 24 : widths.at(size)) << file.name;
    // As much FFN for each token as the dense model of the size has.
    EXPECT_TRUE(toy || (model.routed + model.shared) * model.expert_ffn == model.ffn) << file.name;
    EXPECT_EQ(job->parallel.expert, file.name.ends_with("8x8") ? 8 : 1) << file.name;
  }
}

TEST(JobTableTest, ToyTextHasNoRunsOfEqualBytes) {
  const std::string text = Contents("launch/jobs/text/toy.txt");
  ASSERT_GT(text.size(), 100'000);
  for (size_t i = 1; i < text.size(); ++i) ASSERT_NE(text[i - 1], text[i]) << "at byte " << i;
}

}  // namespace
}  // namespace fathom
