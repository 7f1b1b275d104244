#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "core/status.h"
#include "launch/arguments.h"
#include "launch/commands.h"
#include "launch/rank_environment.h"
#include "launch/run_environment.h"
#include "launch/stop_signals.h"
#include "parallel/mpi_communicator.h"
#include "parallel/rank_groups.h"
#include "parallel/rank_info.h"
#include "parallel/rank_report.h"
#include "parallel/ring_exchange.h"
#include "runtime/trainer.h"
#include "runtime/training_model.h"

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

A job with a layout of several ranks (parallel.tensor, pipeline, data) is started by
launch/mpirun.sh, launch/slurm.sh or mpirun; all ranks then work on the one run.

Ctrl-C, SIGTERM or SIGUSR1 finishes the step and saves; a second one ends the program at once.

example: fathom train launch/jobs/quickstart.txtpb
         fathom train launch/jobs/toy_xmod.txtpb --set train.output=runs/first --resume
         fathom train launch/jobs/toy_xmod.txtpb --set debug.dump_step=2
         launch/mpirun.sh launch/jobs/toy_xmod.txtpb --set parallel.tensor=2
)";

// What the user hears at the end, from rank 0.
std::string Outcome(const Trainer& trainer, const Job& job) {
  if (trainer.stopped_early()) {
    return absl::StrCat("stopped after step ", trainer.step(), " of ", job.train.steps,
                        ", saved in ", job.train.output, ": --resume goes on from there");
  }
  return absl::StrCat("done: ", job.train.output, " holds the checkpoint and metrics.jsonl");
}

// `groups`: null for the only rank of a job.
absl::Status TrainAsRank(const Job& job, bool resume, const std::atomic<int>& stop_signal,
                         Device& device, RankGroups* groups) {
  Progress progress(stderr, isatty(STDERR_FILENO) != 0);
  Trainer trainer(job, {.device = device,
                        .files = PosixFileSystem(),
                        .log = [&](const std::string& line) { progress.Print(line); },
                        .progress = progress,
                        .stop_signal = stop_signal,
                        .groups = groups});
  FATHOM_RETURN_IF_ERROR(trainer.Start(resume));
  FATHOM_RETURN_IF_ERROR(trainer.Run());
  if (groups != nullptr && !groups->first()) return absl::OkStatus();
  progress.Finish();
  LogLine(Outcome(trainer, job));
  return absl::OkStatus();
}

// Meets the other ranks, says where all of them run, and returns how many threads this one takes.
absl::StatusOr<int> MeetRanks(const Job& job, Communicator& world, const Mesh& mesh) {
  CpuDevice device(1);
  const std::unique_ptr<Stream> stream = device.NewStream();
  const RankInfo own = ReadRankInfo(job.device.threads);
  const char* launched = std::getenv("FATHOM_HOSTS");
  const std::vector<std::string> hosts =
      HostsOfRanks(launched != nullptr ? launched : "", world.size(), world.rank(), own.host);
  FATHOM_RETURN_IF_ERROR(
      ExchangeAlongRing(world, *stream, hosts, std::chrono::seconds(job.train.watchdog_seconds)));
  FATHOM_ASSIGN_OR_RETURN(std::vector<RankInfo> ranks, GatherRankInfo(world, *stream, own));
  if (job.device.threads == 0) ShareCores(&ranks);
  if (world.rank() == 0) {
    for (const std::string& line : RankTable(ranks)) LogLine(line);
    for (const std::string& line : RankWarnings(ranks, mesh)) LogLine("warning: " + line);
  }
  return ranks[world.rank()].threads;
}

absl::Status TrainInWorld(const Job& job, bool resume, const std::atomic<int>& stop_signal,
                          Communicator& world) {
  const MeshSizes sizes = MeshOf(job.parallel);
  FATHOM_ASSIGN_OR_RETURN(const Mesh mesh, Mesh::Create(world.size(), sizes));
  FATHOM_ASSIGN_OR_RETURN(const int threads, MeetRanks(job, world, mesh));
  FATHOM_ASSIGN_OR_RETURN(const std::unique_ptr<RankGroups> groups,
                          RankGroups::Create(world, sizes));
  CpuDevice device(threads);
  return TrainAsRank(job, resume, stop_signal, device, groups.get());
}

// As one of the ranks that an MPI launcher started. An error on any of them ends all.
absl::Status TrainUnderMpi(const Job& job, bool resume, const std::atomic<int>& stop_signal) {
  FATHOM_ASSIGN_OR_RETURN(
      const std::unique_ptr<MpiWorld> mpi,
      MpiWorld::Start({.watchdog = std::chrono::seconds(job.train.watchdog_seconds)}));
  const absl::Status status = TrainInWorld(job, resume, stop_signal, mpi->communicator());
  if (!status.ok()) mpi->communicator().Abort(status);
  return mpi->Finish();
}

absl::Status Train(const Arguments& arguments, const std::atomic<int>& stop_signal) {
  if (arguments.words().size() != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("one job file is needed, ", arguments.words().size(),
                     " words were given; \"fathom train --help\" shows an example"));
  }
  FATHOM_RETURN_IF_ERROR(CheckProcessor());
  FATHOM_ASSIGN_OR_RETURN(const Job job, ReadJob(arguments.words()[0], arguments.Values("set")));
  FATHOM_RETURN_IF_ERROR(CheckLayoutOf(job));
  const bool resume = arguments.Has("resume");
  if (StartedByMpiLauncher()) return TrainUnderMpi(job, resume, stop_signal);
  if (job.parallel.ranks() > 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the job's layout (", MeshOf(job.parallel).ToString(), ") needs ", job.parallel.ranks(),
        " ranks: start them with launch/mpirun.sh ", arguments.words()[0]));
  }
  const std::unique_ptr<Device> device = MakeDevice(job);
  return TrainAsRank(job, resume, stop_signal, *device, nullptr);
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
