#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "core/cpu_device.h"
#include "core/job.h"
#include "runtime/trainer.h"

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

// Trains launch/jobs/JOB.txtpb in the test's data, shortened: three steps of four sequences of 32
// tokens in two micro-batches, unless `overrides` say something else. Token files go to DIRECTORY,
// the run to DIRECTORY/OUTPUT.
inline ToyRun RunToy(const std::string& job_name, const std::string& directory,
                     const std::string& output, std::vector<std::string> overrides = {},
                     bool resume = false) {
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
  const auto job = ReadJob("launch/jobs/" + job_name + ".txtpb", settings);
  run.status = job.status();
  if (!job.ok()) return run;

  CpuDevice device(1);
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> sink(std::fopen("/dev/null", "w"),
                                                             &std::fclose);
  Progress progress(sink.get(), /*terminal=*/false);
  const std::atomic<int> no_signal{0};
  Trainer trainer(*job, {.device = device,
                         .files = PosixFileSystem(),
                         .log = [&](const std::string& line) { run.log.push_back(line); },
                         .progress = progress,
                         .stop_signal = no_signal});
  run.status = trainer.Start(resume);
  if (run.status.ok()) run.status = trainer.Run();
  return run;
}

}  // namespace fathom
