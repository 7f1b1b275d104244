// `fathom train` is killed at random moments, most of them in or near a save, and resumed each
// time: there is always a newest whole checkpoint, and the run ends as one that nobody disturbed,
// bit for bit. It runs in the repository's folder.

#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "core/check.h"
#include "nlohmann/json.hpp"
#include "tests/process.h"

namespace fathom {
namespace {

using Words = std::vector<std::string>;

constexpr char kProgram[] = "launch/fathom";

std::string ReadAll(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

class CheckpointKill : public ::testing::Test {
 protected:
  CheckpointKill() {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    directory_ = ::testing::TempDir() + "/checkpoint_kill_" + test->name();
    std::filesystem::remove_all(directory_);
    std::filesystem::create_directories(directory_);
  }
  ~CheckpointKill() override { std::filesystem::remove_all(directory_); }

  std::string Path(const std::string& name) const { return directory_ + "/" + name; }

  Words Train(const std::string& run, int steps, const Words& settings, bool resume) const {
    Words words = {kProgram, "train", "launch/jobs/toy_xmod.txtpb"};
    Words all = {"data.directory=" + Path("data"),
                 "train.output=" + Path(run),
                 "train.steps=" + std::to_string(steps),
                 "train.sequence_length=32",
                 "train.global_batch=2",
                 "train.micro_batch=2",
                 "train.validation_sequences=1",
                 "device.threads=1",
                 "metrics.tensorboard=false"};
    all.insert(all.end(), settings.begin(), settings.end());
    for (const std::string& setting : all) {
      words.push_back("--set");
      words.push_back(setting);
    }
    if (resume) words.push_back("--resume");
    return words;
  }

  int Run(const Words& command) {
    Process process(command, Path("log"));
    return process.Wait();
  }

  // Steps that metrics.jsonl has.
  int StepsOf(const std::string& run) const {
    std::istringstream lines(ReadAll(Path(run + "/metrics.jsonl")));
    int steps = 0;
    for (std::string line; std::getline(lines, line);) {
      steps += line.rfind("{\"kind\": \"train\"", 0) == 0;
    }
    return steps;
  }

  // The step that LATEST names, 0 when there is none.
  int Latest(const std::string& run) const {
    std::string name;
    std::ifstream(Path(run + "/LATEST")) >> name;
    return name.empty() ? 0 : std::stoi(name.substr(5));
  }

  // metrics.jsonl without times.
  std::vector<nlohmann::json> Metrics(const std::string& run) const {
    std::vector<nlohmann::json> records;
    std::ifstream file(Path(run + "/metrics.jsonl"));
    for (std::string line; std::getline(file, line);) {
      records.push_back(nlohmann::json::parse(line));
      records.back().erase("seconds");
      records.back().erase("tokens_per_second");
    }
    return records;
  }

  // Kills a run so often while it makes its way through about five steps for each kill.
  void KillAndResume(int kills);

  std::string directory_;
};

class CheckpointKillLong : public CheckpointKill {};

void CheckpointKill::KillAndResume(int kills) {
  const int steps = 6 * kills + 4;
  ASSERT_EQ(Run(Train("whole", steps, {}, false)), 0) << ReadAll(Path("log"));
  std::mt19937 random(1);
  int in_a_save = 0;
  for (int kill = 0; kill < kills; ++kill) {
    SCOPED_TRACE("kill " + std::to_string(kill));
    const int before = Latest("run");
    // Every other time in the background.
    const std::string async = kill % 2 == 0 ? "false" : "true";
    Process process(Train("run", steps,
                          {"checkpoint.every=1", "checkpoint.keep=2", "checkpoint.async=" + async},
                          /*resume=*/kill > 0),
                    Path("log"));
    // The first time it may be before any checkpoint is there.
    const int target = before + (kill == 0 ? 1 : 1 + static_cast<int>(random() % 4));
    const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (StepsOf("run") < target || StepsOf("run") > steps) {
      ASSERT_FALSE(process.HasEnded()) << ReadAll(Path("log"));
      ASSERT_LT(std::chrono::steady_clock::now(), end) << ReadAll(Path("log"));
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 30000));
    process.Kill();
    process.Wait();
    for (const auto& entry : std::filesystem::directory_iterator(Path("run"))) {
      in_a_save += entry.path().extension() == ".tmp";
    }
    const int latest = Latest("run");
    EXPECT_GE(latest, before);
    if (latest == 0) continue;
    EXPECT_EQ(Run({kProgram, "inspect", Path("run"), "--verify"}), 0) << ReadAll(Path("log"));
  }
  ASSERT_EQ(Run(Train("run", steps, {"checkpoint.keep=2"}, /*resume=*/true)), 0)
      << ReadAll(Path("log"));
  EXPECT_EQ(Run({kProgram, "compare", Path("run"), Path("whole")}), 0) << ReadAll(Path("log"));
  EXPECT_EQ(Metrics("run"), Metrics("whole"));
  // What the kills left is gone.
  for (const auto& entry : std::filesystem::directory_iterator(Path("run"))) {
    EXPECT_NE(entry.path().extension(), ".tmp") << entry.path();
  }
  EXPECT_GT(in_a_save, 0) << "no kill has met a save";
}

TEST_F(CheckpointKill, TheRunGoesOnAsIfNothingHadHappened) { KillAndResume(5); }
TEST_F(CheckpointKillLong, TheRunGoesOnAsIfNothingHadHappened) { KillAndResume(50); }

}  // namespace
}  // namespace fathom
