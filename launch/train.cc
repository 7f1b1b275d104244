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
#include "parallel/agreement.h"
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
  absl::Status status = trainer.Start(resume);
  if (status.ok()) status = trainer.Run();
  // Here, while operations in flight still have the memory that the trainer gave them.
  if (!status.ok() && groups != nullptr) groups->world().Abort(status);
  FATHOM_RETURN_IF_ERROR(status);
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
                          RankGroups::Create(world, sizes, ExpertSizesOf(job.parallel)));
  CpuDevice device(threads);
  return TrainAsRank(job, resume, stop_signal, device, groups.get());
}

// The job that the command line asks for.
absl::StatusOr<Job> RequestedJob(const absl::StatusOr<Arguments>& arguments) {
  FATHOM_RETURN_IF_ERROR(arguments.status());
  if (arguments->words().size() != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("one job file is needed, ", arguments->words().size(),
                     " words were given; \"fathom train --help\" shows an example"));
  }
  FATHOM_RETURN_IF_ERROR(CheckProcessor());
  FATHOM_ASSIGN_OR_RETURN(Job job, ReadJob(arguments->words()[0], arguments->Values("set")));
  FATHOM_RETURN_IF_ERROR(CheckLayoutOf(job));
  return job;
}

absl::Status CheckRanks(const absl::StatusOr<Job>& job, int ranks) {
  FATHOM_RETURN_IF_ERROR(job.status());
  if (job->parallel.ranks() == ranks) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the job's layout is ", MeshOf(job->parallel).ToString(),
                   " ranks, but the number that was started is ", ranks));
}

// `mine` of rank 0, as FromFirstRank gives it.
absl::Status HearFirstRank(Communicator& world, const absl::Status& mine) {
  CpuDevice device(1);
  const std::unique_ptr<Stream> stream = device.NewStream();
  absl::StatusOr<std::string> text = "";
  if (!mine.ok()) text = mine;
  return FromFirstRank(world, *stream, text).status();
}

// As one of the ranks that an MPI launcher started; the exit status. What rank 0 refuses, all
// refuse, and it says so for all. Any other error on any of them ends all.
int TrainUnderMpi(const absl::StatusOr<Job>& job, bool resume,
                  const std::atomic<int>& stop_signal) {
  const TrainConfig& config = job.ok() ? job->train : TrainConfig();
  const absl::StatusOr<std::unique_ptr<MpiWorld>> mpi =
      MpiWorld::Start({.watchdog = std::chrono::seconds(config.watchdog_seconds)});
  if (!mpi.ok()) std::_Exit(Fail("train", mpi.status()));  // a thread may hang in MPI
  Communicator& world = (*mpi)->communicator();
  absl::Status status = CheckRanks(job, world.size());
  const absl::Status heard = HearFirstRank(world, status);
  const bool refused = world.rank() == 0 ? !status.ok() : absl::IsAborted(heard);
  int result = kDone;
  if (refused) {
    result = world.rank() == 0 ? Fail("train", status) : kRefused;
    status = absl::OkStatus();
  } else {
    if (status.ok()) status = heard;
    if (status.ok()) status = TrainInWorld(*job, resume, stop_signal, world);
  }
  if (status.ok()) status = (*mpi)->Finish();
  if (!status.ok()) world.Abort(status);
  return result;
}

// As the only rank.
absl::Status TrainAlone(const absl::StatusOr<Job>& job, bool resume,
                        const std::atomic<int>& stop_signal) {
  FATHOM_RETURN_IF_ERROR(job.status());
  if (job->parallel.ranks() > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("parallel.tensor x pipeline x data needs ", job->parallel.ranks(), " ranks (",
                     MeshOf(job->parallel).ToString(), "): start them with launch/mpirun.sh"));
  }
  const std::unique_ptr<Device> device = MakeDevice(*job);
  return TrainAsRank(*job, resume, stop_signal, *device, nullptr);
}

}  // namespace

int TrainMain(int argc, char** argv) {
  const absl::StatusOr<Arguments> arguments = Arguments::Parse(argc, argv, {"set"}, {"resume"});
  if (arguments.ok() && arguments->help()) {
    std::fputs(kHelp, stdout);
    return kDone;
  }
  const std::atomic<int>& stop_signal = WatchStopSignals();
  const absl::StatusOr<Job> job = RequestedJob(arguments);
  const bool resume = arguments.ok() && arguments->Has("resume");
  if (StartedByMpiLauncher()) {
    const int result = TrainUnderMpi(job, resume, stop_signal);
    if (result != kDone) return result;
  } else if (const absl::Status status = TrainAlone(job, resume, stop_signal); !status.ok()) {
    return Fail("train", status);
  }
  return stop_signal.load() == 0 ? kDone : 128 + stop_signal.load();
}

}  // namespace fathom
