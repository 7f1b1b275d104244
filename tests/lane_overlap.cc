// How much of the communication between tensor ranks two lanes hide. Two ranks, as threads, run
// forward and backward of eight micro-batches over a communicator that takes a set time for each
// transfer: see docs/communication.md.
//
// usage: lane_overlap [REPETITIONS [dense|sparse]]

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "runtime/testing/step_ranks.h"

namespace fathom {
namespace {

using Clock = CommunicationLog::Clock;
using Records = std::vector<CommunicationLog::Record>;

constexpr int64_t kMicroBatches = 8;
// Runs of the micro-batches in one world; the first one warms up.
constexpr int kRuns = 4;
// Of the shortest computation between two transfers: how long one takes.
constexpr double kShare = 0.5;

struct Model {
  const char* name;
  const char* plan;
};
constexpr Model kDense{"dense", "plan { repeat: 8 dense {} }"};
constexpr Model kSparse{
    "sparse",
    "plan { repeat: 2 group { plan { repeat: 8 sparse { sparsity: 2 } } plan { dense {} } } }"};

Job MakeJob(const Model& model, int lanes) {
  const std::string text = absl::StrCat(R"(
    model { d: 256 heads: 8 kv_heads: 4 head_dim: 32 ffn: 768 vocabulary: 2048 )",
                                        model.plan, R"( }
    parallel { tensor: 2 }
    data { text: "unused" }
    train { steps: 1 sequence_length: 128 micro_batch: 1 })");
  const absl::StatusOr<Job> job = ParseJob(
      text, "lane_overlap",
      {absl::StrCat("parallel.lanes=", lanes), absl::StrCat("train.global_batch=", kMicroBatches)});
  FATHOM_CHECK(job.ok()) << job.status().message();
  return *job;
}

double Seconds(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

double Median(std::vector<double> values) {
  FATHOM_CHECK(!values.empty());
  std::sort(values.begin(), values.end());
  return (values[(values.size() - 1) / 2] + values[values.size() / 2]) / 2;
}

// By rank 0's clock.
struct Measured {
  std::vector<double> seconds;  // of each run, from a barrier to a barrier
  Records records;              // of the last run
};

Measured Measure(const Model& model, int lanes, const InProcessOptions& options) {
  Measured measured;
  const auto run_rank = [&](StepRank& rank) -> absl::Status {
    Communicator& world = rank.groups.world();
    for (int run = 0; run < kRuns; ++run) {
      FATHOM_RETURN_IF_ERROR(world.Barrier(rank.training.stream()).Wait());
      rank.log.Clear();
      const Clock::time_point start = Clock::now();
      FATHOM_RETURN_IF_ERROR(rank.Train());
      if (rank.groups.first()) measured.records = rank.log.records();
      FATHOM_RETURN_IF_ERROR(world.Barrier(rank.training.stream()).Wait());
      if (run > 0 && rank.groups.first()) measured.seconds.push_back(Seconds(Clock::now() - start));
    }
    return absl::OkStatus();
  };
  const absl::Status status = RunStepRanks(MakeJob(model, lanes), options, run_rank);
  FATHOM_CHECK(status.ok()) << status.message();
  return measured;
}

// The shortest time from the end of one of the largest transfers to the next transfer: of each
// place in a micro-batch the median over the micro-batches. The last transfer of a micro-batch does
// not count, since the next one may belong to another run.
double ShortestComputation(const Records& records) {
  const size_t each = records.size() / kMicroBatches;
  int64_t largest = 0;
  for (const auto& record : records) largest = std::max(largest, record.bytes);
  double shortest = 1e9;
  for (size_t i = 0; i + 1 < each; ++i) {
    if (records[i].bytes < largest) continue;
    std::vector<double> seconds;
    for (size_t at = i; at < records.size(); at += each) {
      seconds.push_back(Seconds(records[at + 1].issued - records[at].finished));
    }
    shortest = std::min(shortest, Median(seconds));
  }
  return shortest;
}

std::string Load() {
  std::ifstream file("/proc/loadavg");
  std::string minute;
  file >> minute;
  return minute;
}

void Print(const Model& model, const char* which, double none, double exposed, double lanes) {
  std::printf("%-7s %-8s none %.3f s   exposed %.3f s   lanes %.3f s   hidden %.3f   load %s\n",
              model.name, which, none, exposed, lanes,
              (exposed - lanes) / std::min(exposed - none, none), Load().c_str());
}

// Prints two lines for one model: by the medians of the runs, and by the fastest ones, which a busy
// machine disturbs least.
void Compare(const Model& model, const InProcessOptions& delays, int repetitions) {
  std::vector<double> none, exposed, lanes;
  // In turns, so that all three see the same load.
  for (int i = 0; i < repetitions; ++i) {
    for (const double seconds : Measure(model, 1, {}).seconds) none.push_back(seconds);
    for (const double seconds : Measure(model, 1, delays).seconds) exposed.push_back(seconds);
    for (const double seconds : Measure(model, 2, delays).seconds) lanes.push_back(seconds);
  }
  Print(model, "median", Median(none), Median(exposed), Median(lanes));
  const auto fastest = [](const std::vector<double>& seconds) {
    return *std::min_element(seconds.begin(), seconds.end());
  };
  Print(model, "fastest", fastest(none), fastest(exposed), fastest(lanes));
}

int Main(int repetitions, const std::string& only) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  const Records records = Measure(kDense, 1, {}).records;
  const double computation = ShortestComputation(records);
  int64_t largest = 0;
  for (const auto& record : records) largest = std::max(largest, record.bytes);
  InProcessOptions delays;
  delays.latency = std::chrono::microseconds(20);
  delays.bytes_per_second = static_cast<double>(largest) / (kShare * computation);
  const double transfer = kShare * computation + Seconds(delays.latency);
  std::printf(
      "%zu transfers; the longest takes %.2f ms, the shortest computation behind one %.2f ms\n",
      records.size(), 1e3 * transfer, 1e3 * computation);
  for (const Model& model : {kDense, kSparse}) {
    if (only.empty() || only == model.name) Compare(model, delays, repetitions);
  }
  return 0;
}

}  // namespace
}  // namespace fathom

int main(int argc, char** argv) {
  return fathom::Main(argc > 1 ? std::atoi(argv[1]) : 5, argc > 2 ? argv[2] : "");
}
