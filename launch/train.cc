#include <unistd.h>

#include <atomic>
#include <cstdio>

#include "core/status.h"
#include "launch/arguments.h"
#include "launch/commands.h"
#include "launch/run_environment.h"
#include "launch/stop_signals.h"
#include "runtime/trainer.h"

namespace fathom {
namespace {

constexpr char kHelp[] =
    R"(usage: fathom train JOB [--set FIELD=VALUE]... [--resume]

Trains a job from its first step to its last, or goes on from its newest checkpoint. Text that the
job names is made into tokens on first use. Writes to train.output: metrics.jsonl (one line each
step), the same numbers for TensorBoard, and checkpoints (step_NNNNNNNN, LATEST).
  --set FIELD=VALUE  overrides a field of the job, e.g. --set train.steps=100
  --resume           continues the run in train.output; without a checkpoint there, starts it

Fields that look inside: debug.dump_step=N writes step N out whole (docs/debugging.md), and
debug.selection_file replays the selection of such a dump; train.init_from starts from the weights
of a file or checkpoint.

Ctrl-C or SIGTERM finishes the step and saves; a second one ends the program at once.

example: fathom train launch/jobs/quickstart.txtpb
         fathom train launch/jobs/toy_xmod.txtpb --set train.output=runs/first --resume
         fathom train launch/jobs/toy_xmod.txtpb --set debug.dump_step=2
)";

absl::Status Train(const Arguments& arguments, const std::atomic<int>& stop_signal) {
  if (arguments.words().size() != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("one job file is needed, ", arguments.words().size(),
                     " words were given; \"fathom train --help\" shows an example"));
  }
  FATHOM_RETURN_IF_ERROR(CheckProcessor());
  FATHOM_ASSIGN_OR_RETURN(const Job job, ReadJob(arguments.words()[0], arguments.Values("set")));
  const std::unique_ptr<Device> device = MakeDevice(job);
  Progress progress(stderr, isatty(STDERR_FILENO) != 0);
  Trainer trainer(job, {.device = *device,
                        .files = PosixFileSystem(),
                        .log = [&](const std::string& line) { progress.Print(line); },
                        .progress = progress,
                        .stop_signal = stop_signal});
  FATHOM_RETURN_IF_ERROR(trainer.Start(arguments.Has("resume")));
  FATHOM_RETURN_IF_ERROR(trainer.Run());
  progress.Finish();
  if (trainer.stopped_early()) {
    LogLine(absl::StrCat("stopped after step ", trainer.step(), " of ", job.train.steps,
                         ", saved in ", job.train.output, ": --resume goes on from there"));
  } else {
    LogLine(absl::StrCat("done: ", job.train.output, " holds the checkpoint and metrics.jsonl"));
  }
  return absl::OkStatus();
}

}  // namespace

int TrainMain(int argc, char** argv) {
  const absl::StatusOr<Arguments> arguments = Arguments::Parse(argc, argv, {"set"}, {"resume"});
  if (!arguments.ok()) return Fail("train", arguments.status());
  if (arguments->help()) {
    std::fputs(kHelp, stdout);
    return kDone;
  }
  const std::atomic<int>& stop_signal = WatchStopSignals();
  const absl::Status status = Train(*arguments, stop_signal);
  if (!status.ok()) return Fail("train", status);
  return stop_signal.load() == 0 ? kDone : 128 + stop_signal.load();
}

}  // namespace fathom
