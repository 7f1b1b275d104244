// `fathom train` on several ranks under mpirun: a layout over MPI is the run of one rank, a stop
// saves and resumes on fewer ranks, and whatever happens to a rank ends the whole job, with its
// cause and without processes left over. It runs in the repository's folder. Failures
// that resemble others and take long are MpirunTrainLong's.

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/file.h"
#include "nlohmann/json.hpp"
#include "runtime/data/token_file.h"
#include "tests/process.h"

namespace fathom {
namespace {

using Json = nlohmann::json;
using Words = std::vector<std::string>;

constexpr char kProgram[] = "launch/fathom";
constexpr std::chrono::seconds kEnd(30);     // a failed job has ended by then
constexpr std::chrono::seconds kFinish(60);  // a good one
constexpr char kForEver[] = "train.steps=1000000";

std::string ReadAll(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

Words operator+(Words a, const Words& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// Waits until `condition` holds; false when it does not within a minute.
bool Until(const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (!condition()) {
    if (std::chrono::steady_clock::now() >= end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

int CountLines(const std::string& text, const std::string& beginning) {
  std::istringstream lines(text);
  int count = 0;
  for (std::string line; std::getline(lines, line);) count += line.rfind(beginning, 0) == 0;
  return count;
}

class MpirunTrain : public ::testing::Test {
 protected:
  MpirunTrain() {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    // The process's number tells the processes of this run from those of another one.
    directory_ =
        ::testing::TempDir() + "/mpirun_train_" + test->name() + "_" + std::to_string(getpid());
    std::filesystem::remove_all(directory_);
    std::filesystem::create_directories(directory_);
    setenv("HOME", directory_.c_str(), /*overwrite=*/0);  // mpirun wants one
  }
  ~MpirunTrain() override {
    for (const pid_t id : Processes("")) kill(id, SIGKILL);
    std::filesystem::remove_all(directory_);
  }

  std::string Path(const std::string& name) const { return directory_ + "/" + name; }

  // fathom train, of a toy that takes a second, with its run in Path(run).
  Words Train(const std::string& run, const Words& settings, bool resume = false,
              const std::string& job = "toy_xmod") const {
    Words words = {kProgram, "train", "launch/jobs/" + job + ".txtpb"};
    const Words all = Words{"data.directory=" + Path("data"),
                            "train.output=" + Path(run),
                            "train.steps=2",
                            "train.sequence_length=32",
                            "train.validation_sequences=2",
                            "train.precision=FP64",
                            "device.threads=1",
                            "metrics.tensorboard=false"} +
                      settings;
    for (const std::string& setting : all) {
      words.push_back("--set");
      words.push_back(setting);
    }
    if (resume) words.push_back("--resume");
    return words;
  }

  static Words Mpirun(const Words& options = {}) {
    return Words{"mpirun", "--oversubscribe", "--allow-run-as-root", "--bind-to", "none"} + options;
  }
  static Words Mpirun(int ranks) { return Mpirun({"-np", std::to_string(ranks)}); }

  std::string LogOf(const std::string& run) const { return Path(run + ".log"); }
  std::string Output(const std::string& run) const { return ReadAll(LogOf(run)); }

  std::unique_ptr<Process> Start(const Words& command, const std::string& run) {
    return std::make_unique<Process>(command, LogOf(run));
  }
  // Runs to a good end.
  void Finish(const Words& command, const std::string& run) {
    const std::optional<int> status = Start(command, run)->WaitFor(kFinish);
    ASSERT_EQ(status, 0) << Output(run);
  }

  // The processes of fathom, not those of mpirun, that have this test's folder in their command
  // line and `variable` in their environment.
  std::vector<pid_t> Processes(const std::string& variable) const {
    std::vector<pid_t> found;
    for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
      const pid_t id = std::atoi(entry.path().filename().c_str());
      if (id == 0) continue;
      const std::string command = ReadAll(entry.path() / "cmdline");
      if (command.rfind(kProgram, 0) != 0 || command.find(directory_) == std::string::npos)
        continue;
      const std::string environment = '\0' + ReadAll(entry.path() / "environ");
      if (environment.find('\0' + variable) != std::string::npos) found.push_back(id);
    }
    return found;
  }
  // The process of a rank, waited for.
  pid_t Rank(int rank) const {
    std::vector<pid_t> found;
    const std::string variable = "OMPI_COMM_WORLD_RANK=" + std::to_string(rank) + '\0';
    FATHOM_CHECK(Until([&] { return !(found = Processes(variable)).empty(); })) << "rank " << rank;
    FATHOM_CHECK_EQ(found.size(), 1);
    return found[0];
  }

  // Waits until a run has recorded this many steps.
  void AwaitSteps(const std::string& run, int steps) {
    FATHOM_CHECK(Until([&] {
      return CountLines(ReadAll(Path(run + "/metrics.jsonl")), "{\"kind\": \"train\"") >= steps;
    })) << Output(run);
  }

  // The job, in which something has happened, ends by itself, non-zero, says all of `texts`, and
  // leaves no process behind.
  void ExpectFailure(Process& job, const std::string& run, const Words& texts) {
    const std::optional<int> status = job.WaitFor(kEnd);
    ASSERT_TRUE(status.has_value()) << "the job goes on: " << Output(run);
    EXPECT_NE(*status, 0);
    const std::string output = Output(run);
    for (const std::string& text : texts) {
      EXPECT_NE(output.find(text), std::string::npos) << "no \"" << text << "\" in: " << output;
    }
    EXPECT_TRUE(Until([&] { return Processes("").empty(); })) << "processes are left over";
  }

  // Refused by one sentence that has all of `texts`.
  void ExpectRefusal(const Words& command, const Words& texts) {
    auto job = Start(command, "refused");
    ExpectFailure(*job, "refused", texts);
    EXPECT_EQ(job->Wait(), 2);
    EXPECT_EQ(CountLines(Output("refused"), "fathom train: "), 1) << Output("refused");
    EXPECT_FALSE(std::filesystem::exists(Path("refused")));
  }

  std::string Latest(const std::string& run) const {
    std::string name;
    std::ifstream(Path(run + "/LATEST")) >> name;
    return name;
  }

  // The last checkpoints of two runs, and their metrics without times, differ by no more than
  // `tolerance` of a tensor's largest element, or of a number.
  void ExpectEqual(const std::string& a, const std::string& b, const std::string& tolerance) {
    const std::optional<int> status = Start({kProgram, "compare", Path(a + "/" + Latest(a)),
                                             Path(b + "/" + Latest(b)), "--rtol", tolerance},
                                            "compare")
                                          ->WaitFor(kFinish);
    EXPECT_EQ(status, 0) << a << " and " << b << ": " << Output("compare");
    const std::vector<Json> records = Metrics(a), others = Metrics(b);
    ASSERT_EQ(records.size(), others.size());
    ASSERT_GE(records.size(), 2);
    for (size_t i = 0; i < records.size(); ++i) {
      ExpectEqualRecords(records[i], others[i], std::stod(tolerance));
    }
  }

  static void ExpectEqualRecords(const Json& a, const Json& b, double tolerance) {
    ASSERT_EQ(a.size(), b.size());
    for (const auto& [key, value] : a.items()) {
      if (key == "seconds" || key == "tokens_per_second") continue;
      if (!value.is_number()) {
        EXPECT_EQ(value, b[key]) << key;
        continue;
      }
      const double other = b[key];
      EXPECT_LE(std::abs(value.get<double>() - other), tolerance * std::abs(other)) << key;
    }
  }

  std::vector<Json> Metrics(const std::string& run) const {
    std::vector<Json> records;
    std::ifstream file(Path(run + "/metrics.jsonl"));
    for (std::string line; std::getline(file, line);) records.push_back(Json::parse(line));
    return records;
  }

  // Tokens of which most are no part of the toy's vocabulary.
  void WriteForeignTokens(const std::string& path) {
    auto writer = TokenFileWriter::Create(PosixFileSystem(), path,
                                          {.tokenizer = "bytes", .vocabulary = 1000});
    ASSERT_TRUE(writer.ok()) << writer.status();
    std::vector<int32_t> tokens(10000, 300);
    ASSERT_TRUE((*writer)->Append(tokens.data(), static_cast<int64_t>(tokens.size())).ok());
    ASSERT_TRUE((*writer)->EndDocument().ok());
    ASSERT_TRUE((*writer)->Finish().ok());
  }

  // Stops rank 0 of a run while it writes a checkpoint, after this many steps have been recorded.
  // False when it has ended before.
  bool PauseInACheckpoint(const std::string& run, int steps) {
    const pid_t first = Rank(0);
    AwaitSteps(run, steps);
    bool ended = false;
    FATHOM_CHECK(Until([&] {
      ended = kill(first, SIGSTOP) != 0;
      // The signal takes effect a little later.
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      if (ended || IsSaving(run)) return true;
      kill(first, SIGCONT);
      return false;
    })) << Output(run);
    return !ended;
  }
  bool IsSaving(const std::string& run) const {
    std::error_code gone;
    for (const auto& entry : std::filesystem::directory_iterator(Path(run), gone)) {
      const std::string name = entry.path().filename();
      if (name.rfind("step_", 0) == 0 && entry.path().extension() == ".tmp") return true;
    }
    return false;
  }

  // Rank 0 writes a checkpoint when it, or another rank, is killed: the one before it is good.
  void KillInACheckpoint(int killed);

  std::string directory_;
};

class MpirunTrainLong : public MpirunTrain {};

const Words kTwoByTwo = {"parallel.tensor=2", "parallel.pipeline=2"};
const Words kTwoReplicas = {"parallel.data=2", "parallel.zero=1"};
const Words kTwoTensor = {"parallel.tensor=2"};
const Words kSaveOften = {kForEver, "checkpoint.every=1", "train.global_batch=2"};

void MpirunTrain::KillInACheckpoint(int killed) {
  auto job = Start(Mpirun(2) + Train("run", kTwoTensor + kSaveOften), "run");
  // Not in the first one, which is written in the background.
  ASSERT_TRUE(Until([&] { return !Latest("run").empty(); })) << Output("run");
  ASSERT_TRUE(PauseInACheckpoint("run", 2));
  const pid_t first = Rank(0);
  kill(Rank(killed), SIGKILL);
  if (killed != 0) kill(first, SIGCONT);
  ExpectFailure(*job, "run", {"process rank " + std::to_string(killed), "signal 9"});
  const int step = std::stoi(Latest("run").substr(5));
  const Words one_more = {"train.steps=" + std::to_string(step + 1), "train.global_batch=2"};
  Finish(Mpirun(2) + Train("run", kTwoTensor + one_more, /*resume=*/true), "resumed");
  EXPECT_NE(Output("resumed").find("resumed from " + Path("run")), std::string::npos)
      << Output("resumed");
  EXPECT_EQ(Metrics("run").back()["step"], step + 1);
}

TEST_F(MpirunTrain, ALayoutIsTheRunOfOneRank) {
  Finish(Train("one", {}), "one");
  for (const auto& [name, ranks, layout] :
       {std::tuple("tensor_pipeline", 4, kTwoByTwo), std::tuple("data", 2, kTwoReplicas)}) {
    const std::string again = std::string(name) + "_again";
    Finish(Mpirun(ranks) + Train(name, layout), name);
    Finish(Mpirun(ranks) + Train(again, layout), again);
    ExpectEqual(name, "one", "1e-9");
    ExpectEqual(again, name, "0");
  }
}

TEST_F(MpirunTrain, ExpertsOnSeveralRanksAreTheRunOfOneRank) {
  const auto train = [&](const std::string& run, const Words& layout) {
    return Train(run, layout, /*resume=*/false, "toy_moe_xmod");
  };
  Finish(train("one", {}), "one");
  Finish(Mpirun(4) +
             train("shared_out", {"parallel.data=2", "parallel.tensor=2", "parallel.expert=4",
                                  "parallel.zero=1", "parallel.sequence=true", "parallel.lanes=2"}),
         "shared_out");
  ExpectEqual("shared_out", "one", "1e-9");
}

// Where every message of more than 128 bytes waits for its receive, a wrong order of sends and
// receives would hang.
TEST_F(MpirunTrain, PipelinesDoNotDependOnBuffers) {
  const Words options = {"--mca", "btl_vader_eager_limit", "128"};
  for (const auto& [stages, micro_batches] :
       {std::pair(2, 1), {2, 2}, {2, 3}, {2, 5}, {4, 1}, {4, 3}, {4, 4}, {4, 5}, {4, 9}}) {
    const std::string run = std::to_string(stages) + "_" + std::to_string(micro_batches);
    SCOPED_TRACE(run);
    Finish(Mpirun(options + Words{"-np", std::to_string(stages)}) +
               Train(run, {"train.steps=1", "parallel.pipeline=" + std::to_string(stages),
                           "train.global_batch=" + std::to_string(micro_batches)}),
           run);
    EXPECT_EQ(Latest(run), "step_00000001");
  }
}

TEST_F(MpirunTrain, StopsAndResumesWithFewerReplicas) {
  const Words settings = {"train.steps=8", "train.global_batch=2", "train.validate_every=0"};
  Finish(Train("one", settings), "one");

  auto job = Start(Mpirun(2) + Train("stopped", settings + kTwoReplicas), "stopped");
  AwaitSteps("stopped", 2);
  // The others do not get far without this rank, so that the signal comes before the end.
  const pid_t second = Rank(1);
  kill(second, SIGSTOP);
  job->Signal(SIGUSR1);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  kill(second, SIGCONT);
  EXPECT_EQ(job->WaitFor(kFinish), 128 + SIGUSR1) << Output("stopped");
  const std::vector<Json> metrics = Metrics("stopped");
  const int step = metrics.back()["step"];
  ASSERT_LT(step, 8);
  EXPECT_EQ(Latest("stopped"), "step_0000000" + std::to_string(step));
  EXPECT_NE(Output("stopped").find("stopped after step " + std::to_string(step) + " of 8"),
            std::string::npos)
      << Output("stopped");

  Finish(Train("stopped", settings, /*resume=*/true), "resumed");
  EXPECT_NE(Output("resumed").find("resumed from"), std::string::npos) << Output("resumed");
  ExpectEqual("stopped", "one", "1e-9");
}

// Only one rank hears of the stop, and all of them take part in it.
TEST_F(MpirunTrain, ASignalToOneRankStopsAll) {
  auto job = Start(Mpirun(2) + Train("run", Words{kForEver} + kTwoTensor), "run");
  AwaitSteps("run", 1);
  kill(Rank(1), SIGUSR1);
  EXPECT_EQ(job->WaitFor(kFinish), 128 + SIGUSR1) << Output("run");
  EXPECT_EQ(CountLines(Output("run"), "stopped after step"), 1) << Output("run");
  EXPECT_FALSE(Latest("run").empty());
}

TEST_F(MpirunTrain, ARankIsKilledAtTheStart) {
  auto job = Start(Mpirun(2) + Train("run", kTwoTensor), "run");
  kill(Rank(1), SIGKILL);
  // mpirun names rank and signal of a process only once it has been told that it runs.
  ExpectFailure(*job, "run", {"process"});
}

TEST_F(MpirunTrain, ARankIsKilledInAStep) {
  auto job = Start(Mpirun(2) + Train("run", Words{kForEver} + kTwoTensor), "run");
  AwaitSteps("run", 2);
  kill(Rank(1), SIGKILL);
  ExpectFailure(*job, "run", {"process rank 1", "signal 9"});
}

TEST_F(MpirunTrain, RankZeroIsKilledInACheckpoint) { KillInACheckpoint(0); }
TEST_F(MpirunTrainLong, AnotherRankIsKilledInACheckpoint) { KillInACheckpoint(1); }

TEST_F(MpirunTrain, RankZeroCannotWriteItsOutput) {
  std::ofstream(Path("file")) << "kept";
  auto job = Start(Mpirun(2) + Train("file/run", kTwoTensor), "run");
  ExpectFailure(*job, "run", {"rank 0 (pipeline 0, data 0, context 0, tensor 0): ", Path("file")});
  // Others do not print it as theirs.
  EXPECT_EQ(CountLines(Output("run"), "rank "), 1) << Output("run");
}

// A save that fails does not end the run, but the last one does.
TEST_F(MpirunTrain, RankZeroCannotWriteACheckpoint) {
  auto job = Start(Mpirun(2) + Train("run", kTwoTensor + kSaveOften), "run");
  AwaitSteps("run", 2);
  std::filesystem::rename(Path("run"), Path("away"));
  std::ofstream(Path("run")) << "in its place";
  // One that was being written in the background fails in its own way.
  const std::string refused = " could not be saved: cannot create directory " + Path("run");
  ASSERT_TRUE(Until([&] { return Output("run").find(refused) != std::string::npos; }))
      << Output("run");
  EXPECT_FALSE(job->HasEnded());
  job->Signal(SIGUSR1);
  ExpectFailure(*job, "run",
                {"rank 0 (pipeline 0, data 0, context 0, tensor 0): step ",
                 ", the last one, could not be saved: cannot create directory " + Path("run")});
}

// Only rank 1 is given these settings.
TEST_F(MpirunTrain, ARankCannotReadItsData) {
  const auto start = [&](const std::string& run, const std::string& tokens) {
    const Words good = Words{kForEver, "train.validate_every=0"} + kTwoReplicas;
    return Start(Mpirun(1) + Train(run, good) + Words{":", "-np", "1"} +
                     Train(run, good + Words{"data.train=" + Path(tokens)}),
                 run);
  };
  const std::string label = "rank 1 (pipeline 0, data 1, context 0, tensor 0): ";
  ExpectFailure(*start("at_the_start", "none.tokens"), "at_the_start",
                {label, Path("none.tokens")});
  WriteForeignTokens(Path("foreign.tokens"));
  ExpectFailure(*start("in_a_step", "foreign.tokens"), "in_a_step",
                {label, Path("foreign.tokens")});
}

TEST_F(MpirunTrain, ARankStandsStillAtTheStart) {
  auto job = Start(Mpirun(2) + Train("run", Words{"train.watchdog_seconds=3"} + kTwoTensor), "run");
  kill(Rank(1), SIGSTOP);
  ExpectFailure(*job, "run", {"rank 0 waited 3 s for "});
}

// The others say what they waited for.
TEST_F(MpirunTrain, ARankStandsStillInAStep) {
  auto job = Start(
      Mpirun(4) + Train("run", Words{kForEver, "train.watchdog_seconds=3"} + kTwoByTwo), "run");
  AwaitSteps("run", 1);
  kill(Rank(2), SIGSTOP);
  ExpectFailure(
      *job, "run",
      {"rank 0 (pipeline 0, data 0, context 0, tensor 0) waited 3 s for ",
       "rank 1 (pipeline 0, data 0, context 0, tensor 1) waited 3 s for ",
       "rank 3 (pipeline 1, data 0, context 0, tensor 1) waited 3 s for ", "number", "of group"});
}

TEST_F(MpirunTrain, RankZeroStandsStillInACheckpoint) {
  auto job = Start(
      Mpirun(2) + Train("run", kTwoTensor + kSaveOften + Words{"train.watchdog_seconds=3"}), "run");
  ASSERT_TRUE(PauseInACheckpoint("run", 2));
  ExpectFailure(*job, "run", {"rank 1 (pipeline 0, data 0, context 0, tensor 1) waited 3 s for "});
}

// The other rank waits for its word that the checkpoint is there.
TEST_F(MpirunTrainLong, RankZeroStandsStillInTheLastCheckpoint) {
  std::unique_ptr<Process> job;
  bool paused = false;
  // It may be written before it is seen.
  for (int attempt = 0; attempt < 20 && !paused; ++attempt) {
    std::filesystem::remove_all(Path("run"));
    job = Start(
        Mpirun(2) + Train("run", kTwoTensor + Words{"train.steps=1", "train.watchdog_seconds=3"}),
        "run");
    paused = PauseInACheckpoint("run", 1);
  }
  ASSERT_TRUE(paused);
  ExpectFailure(*job, "run", {"rank 1 (pipeline 0, data 0, context 0, tensor 1) waited 3 s for "});
}

TEST_F(MpirunTrain, RefusesALayoutThatDoesNotFit) {
  ExpectRefusal(Mpirun(3) + Train("refused", kTwoByTwo),
                {"pipeline 2 x data 1 x context 1 x tensor 2 = 4", "started is 3"});
  ExpectRefusal(Mpirun(3) + Train("refused", {"parallel.tensor=3"}), {"query heads 16", "tensor"});
  ExpectRefusal(Mpirun(2) + Train("refused", {"parallel.width=2"}), {"parallel.width"});
  ExpectRefusal(Train("refused", kTwoByTwo), {"needs 4 ranks", "launch/mpirun.sh"});
}

}  // namespace
}  // namespace fathom
