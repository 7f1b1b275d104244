// Several processes that start at once on an empty data directory, as the ranks of a job do, all
// make the same tokens. None may read another's half-written file, and a process that is killed
// while it writes may not stop the others. It runs in the repository's folder.

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "nlohmann/json.hpp"
#include "tests/process.h"

namespace fathom {
namespace {

constexpr int kProcesses = 4;
constexpr int kRounds = 20;
constexpr int kKillEvery = 4;  // in every fourth round one of the processes is killed

class ColdCache : public ::testing::Test {
 protected:
  ColdCache() : directory_(::testing::TempDir() + "/cold_cache") {
    std::filesystem::remove_all(directory_);
    std::filesystem::create_directories(directory_);
    // Large enough for one process to look while another writes.
    std::ofstream text(Path("text.txt"));
    for (int line = 0; line < 60000; ++line) text << line << " lines of words, one by one\n";
  }
  ~ColdCache() override { std::filesystem::remove_all(directory_); }

  std::string Path(const std::string& name) const { return directory_ + "/" + name; }
  std::string Output(int process) const { return Path("run" + std::to_string(process)); }

  // Empties the data directory and the outputs.
  void Clear() {
    std::filesystem::remove_all(Path("data"));
    for (int i = 0; i < kProcesses; ++i) std::filesystem::remove_all(Output(i));
  }

  std::unique_ptr<Process> Start(int process) {
    const std::vector<std::string> settings = {
        "data.text=" + Path("text.txt"),   "data.directory=" + Path("data"),
        "train.output=" + Output(process), "train.steps=1",
        "train.sequence_length=32",        "train.global_batch=1",
        "train.validation_sequences=1",    "device.threads=1",
        "metrics.tensorboard=false"};
    std::vector<std::string> command = {"launch/fathom", "train", "launch/jobs/toy_dense.txtpb"};
    for (const std::string& setting : settings) {
      command.push_back("--set");
      command.push_back(setting);
    }
    return std::make_unique<Process>(command, Path("log" + std::to_string(process)));
  }

  // Whether each name in the data directory ends in ".tokens", by how many do.
  std::map<bool, int> Files() const {
    std::map<bool, int> files;
    std::error_code none_yet;
    for (const auto& entry : std::filesystem::directory_iterator(Path("data"), none_yet)) {
      ++files[entry.path().extension() == ".tokens"];
    }
    return files;
  }

  // A process that stands still in the midst of writing a token file.
  std::unique_ptr<Process> StartAndPauseInTheMiddle(int process) {
    for (int attempt = 0; attempt < 100; ++attempt) {
      Clear();
      std::unique_ptr<Process> paused = Start(process);
      while (Files()[false] == 0 && !paused->HasEnded()) {
        std::this_thread::sleep_for(std::chrono::microseconds(100));
      }
      // It may have finished the file before it stood still.
      if (!paused->HasEnded() && paused->Pause() && Files()[false] > 0) return paused;
    }
    return nullptr;
  }

  // The losses of a run that must have gone well: of its step, and of its validations.
  std::vector<double> Losses(int process) {
    std::vector<double> losses;
    std::ifstream file(Output(process) + "/metrics.jsonl");
    for (std::string line; std::getline(file, line);) {
      const nlohmann::json record = nlohmann::json::parse(line);
      losses.push_back(record[record["kind"] == "train" ? "loss" : "loss_causal"]);
    }
    return losses;
  }

  std::string Log(int process) {
    std::stringstream text;
    text << std::ifstream(Path("log" + std::to_string(process))).rdbuf();
    return text.str();
  }

  std::string directory_;
};

TEST_F(ColdCache, FourProcessesTwentyTimes) {
  std::vector<double> losses;  // of every run
  for (int round = 0; round < kRounds; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    const bool kills = round % kKillEvery == kKillEvery - 1;
    Clear();
    std::vector<std::unique_ptr<Process>> processes(kProcesses);
    if (kills) {
      processes[0] = StartAndPauseInTheMiddle(0);
      ASSERT_NE(processes[0], nullptr);
    }
    for (int i = kills ? 1 : 0; i < kProcesses; ++i) {
      processes[i] = Start(i);
      // Together in some rounds, and in others so that one begins while another is at it.
      std::this_thread::sleep_for(std::chrono::milliseconds(round % 5 * 5));
    }
    if (kills) processes[0]->Kill();
    for (int i = kills ? 1 : 0; i < kProcesses; ++i) {
      ASSERT_EQ(processes[i]->Wait(), 0) << Log(i);
      const std::vector<double> found = Losses(i);
      if (losses.empty()) losses = found;
      EXPECT_EQ(found, losses) << Log(i);
    }
    // Nothing is left but the two files, and what the killed process was writing.
    EXPECT_EQ(Files()[true], 2);
    EXPECT_EQ(Files()[false], kills ? 1 : 0);
  }
  ASSERT_EQ(losses.size(), 3);
  for (const double loss : losses) EXPECT_NEAR(loss, std::log(257), 0.5);
}

}  // namespace
}  // namespace fathom
