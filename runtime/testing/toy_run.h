#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <cstdio>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "core/cpu_device.h"
#include "core/job.h"
#include "core/status.h"
#include "parallel/in_process_communicator.h"
#include "parallel/rank_groups.h"
#include "runtime/trainer.h"
#include "runtime/training_model.h"

namespace fathom {

// What a run of a toy job said.
struct ToyRun {
  absl::Status status;
  std::vector<std::string> log;

  // Whether a line holds `text`.
  bool Said(const std::string& text) const {
    for (const std::string& line : log) {
      if (line.find(text) != std::string::npos) return true;
    }
    return false;
  }
};

struct ToyOptions {
  bool resume = false;
  InProcessOptions in_process = {};  // of several ranks
  // As TrainerEnvironment::before_update, with the rank; called by the ranks' threads.
  std::function<void(int rank, int64_t step, const ParameterTable&)> before_update = {};
};

// One rank's part of a run; `groups` null: it is the only one.
inline absl::Status TrainToy(const Job& job, const ToyOptions& options, RankGroups* groups,
                             std::vector<std::string>* log) {
  CpuDevice device(1);
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> sink(std::fopen("/dev/null", "w"),
                                                             &std::fclose);
  Progress progress(sink.get(), /*terminal=*/false);
  const std::atomic<int> no_signal{0};
  Trainer trainer(job, {.device = device,
                        .files = PosixFileSystem(),
                        .log = [&](const std::string& line) { log->push_back(line); },
                        .progress = progress,
                        .stop_signal = no_signal,
                        .groups = groups,
                        .before_update =
                            [&](int64_t step, const ParameterTable& parameters) {
                              if (!options.before_update) return;
                              const int rank = groups == nullptr ? 0 : groups->rank();
                              options.before_update(rank, step, parameters);
                            }});
  FATHOM_RETURN_IF_ERROR(trainer.Start(options.resume));
  return trainer.Run();
}

// Trains launch/jobs/JOB.txtpb (or the job file JOB) in the test's data, shortened: three steps of
// four sequences of 32 tokens in two micro-batches, unless `overrides` say something else. Token
// files go to DIRECTORY, the run to DIRECTORY/OUTPUT. A layout of several ranks runs with a thread
// for each; the status is that of the first rank that failed.
inline ToyRun RunToy(const std::string& job_name, const std::string& directory,
                     const std::string& output, std::vector<std::string> overrides = {},
                     const ToyOptions& options = {}) {
  std::vector<std::string> settings = {"train.steps=3",
                                       "train.sequence_length=32",
                                       "train.global_batch=4",
                                       "train.micro_batch=2",
                                       "train.validation_sequences=2",
                                       "data.directory=" + directory,
                                       "checkpoint.every=1",
                                       "train.output=" + directory + "/" + output};
  settings.insert(settings.end(), overrides.begin(), overrides.end());
  ToyRun run;
  const bool is_path = job_name.find('/') != std::string::npos;
  const auto job = ReadJob(is_path ? job_name : "launch/jobs/" + job_name + ".txtpb", settings);
  run.status = job.status();
  if (!job.ok()) return run;
  const int ranks = static_cast<int>(job->parallel.ranks());
  if (ranks == 1) {
    run.status = TrainToy(*job, options, nullptr, &run.log);
    return run;
  }
  auto world = NewInProcessWorld(ranks, options.in_process);
  std::mutex mutex;
  const auto train_rank = [&](Communicator& rank) {
    std::vector<std::string> log;
    const auto train = [&]() -> absl::Status {
      FATHOM_ASSIGN_OR_RETURN(
          const std::unique_ptr<RankGroups> groups,
          RankGroups::Create(rank, MeshOf(job->parallel), ExpertSizesOf(job->parallel)));
      const absl::Status status = TrainToy(*job, options, groups.get(), &log);
      // Groups outlive operations that other ranks have yet to end.
      if (!status.ok()) rank.Abort(status);
      return status;
    };
    const absl::Status status = train();
    const std::lock_guard lock(mutex);
    run.status.Update(status);
    run.log.insert(run.log.end(), log.begin(), log.end());
  };
  std::vector<std::thread> threads;
  for (const auto& rank : world) threads.emplace_back(train_rank, std::ref(*rank));
  for (std::thread& thread : threads) thread.join();
  return run;
}

}  // namespace fathom
