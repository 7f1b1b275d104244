#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/file.h"
#include "core/job.h"
#include "parallel/rank_groups.h"
#include "runtime/checkpoint_saver.h"
#include "runtime/data/job_data.h"
#include "runtime/data/prefetcher.h"
#include "runtime/loss_watch.h"
#include "runtime/metrics.h"
#include "runtime/progress.h"
#include "runtime/step_debug.h"
#include "runtime/step_timeline.h"
#include "runtime/tensorboard.h"
#include "runtime/training_model.h"

namespace fathom {

// What a trainer needs of the world around it.
struct TrainerEnvironment {
  Device& device;
  FileSystem& files;
  std::function<void(const std::string&)> log;  // one line for the user
  Progress& progress;
  // Set to a signal's number from outside: the step is finished, the run saved, and Run returns.
  const std::atomic<int>& stop_signal;
  // This rank's place among those of the job, whose mesh is the job's layout; null: it is the only
  // one. Rank 0 alone writes files, but for what others have in checkpoints and timelines, logs and
  // shows progress.
  RankGroups* groups = nullptr;
  // For tests, may be empty: called in each step when all gradients are there.
  std::function<void(int64_t step, const ParameterTable& parameters)> before_update = {};
};

// One run of a job: from initial weights or a checkpoint, step by step, to the last checkpoint.
// With several ranks all call the same methods; an error on one of them must end all
// (Communicator::Abort).
class Trainer {
 public:
  Trainer(const Job& job, const TrainerEnvironment& environment);

  // Opens data and output, allocates, initialises or resumes. `resume` without a checkpoint starts
  // at step 1 and says so. Without `resume`, an output that holds a run is refused (AlreadyExists).
  absl::Status Start(bool resume);
  // From the present step to the last. Call after Start.
  absl::Status Run();

  // The last finished step.
  int64_t step() const { return step_; }
  bool stopped_early() const { return step_ < job_.train.steps; }

 private:
  // What one step did, read back from the device.
  struct StepOutcome {
    double loss = 0;
    double auxiliary_loss = 0;
    std::optional<TrainRecord::ExpertLoads> experts;
    double gradient_norm = 0;
    bool applied = false;
  };

  // The directory to resume from; empty: the run starts at step 1. Of rank 0 alone.
  absl::StatusOr<std::string> OpenOutput(bool resume);
  // `mine` of rank 0, on every rank.
  absl::StatusOr<std::string> FromFirst(const absl::StatusOr<std::string>& mine);
  // Rank 0 first, which prepares text that is not prepared yet.
  absl::Status OpenData();
  absl::Status OpenRecords();
  // Whether the run can go on from a checkpoint, as far as its manifest says.
  absl::Status CheckResumable(const std::string& directory);
  absl::Status Load(const std::string& directory);
  absl::Status LoadInitialWeights();
  // Says so when BF16 is slower than FP32 on this device; the job is obeyed all the same.
  absl::Status WarnIfSlow();

  // Enqueues the whole step; ReadOutcome waits for it. It is the only place of a step where the
  // host reads what the device computed.
  absl::Status TrainStep(int64_t step, double learning_rate);
  absl::StatusOr<StepOutcome> ReadOutcome();

  // Of the finished step `step_`.
  absl::Status Record(const StepOutcome& outcome, double learning_rate, double seconds);
  absl::Status CountSkippedSteps(const StepOutcome& outcome);
  // Says when the loss jumped, and after the first step how memory compares with the plan.
  absl::Status Watch(const StepOutcome& outcome);
  absl::Status Validate(int64_t step);
  // Says when a save has failed since the last call.
  void ReportFailedSave();
  absl::Status Save(bool background);
  // The last save, in which the run's state must be saved.
  absl::Status SaveAtTheEnd();
  // Whether what happens every `every` steps, and after the last one, happens now.
  bool IsDue(int64_t every) const;
  // Whether this rank would stop the run: for a signal, or on rank 0 for the time limit.
  bool WantsToStop() const;
  bool ShouldStop() const;
  void Log(const std::string& line) const;
  double SecondsSinceStart() const;

  Job job_;
  TrainerEnvironment environment_;
  std::unique_ptr<RankGroups> alone_;  // when the environment names none
  RankGroups& groups_;
  JobData data_;
  std::unique_ptr<TrainingModel> training_;
  std::unique_ptr<Prefetcher> batches_;  // reads the next step's while one runs
  // Of rank 0.
  std::unique_ptr<MetricsWriter> metrics_;
  std::unique_ptr<EventWriter> events_;  // the same numbers, for TensorBoard; may be absent
  std::unique_ptr<StepDebug> debug_;
  std::unique_ptr<StepTimeline> timeline_;
  std::unique_ptr<CheckpointSaver> saver_;
  LossWatch loss_watch_;  // starts afresh at a resume

  Buffer totals_buffer_;
  Tensor totals_;             // [kStepTotals] float64 on the device
  double wants_stop_ = 0;     // the source of an asynchronous copy
  bool stop_agreed_ = false;  // a rank wanted to stop when the last step ended

  int64_t step_ = 0;                       // finished
  int64_t first_step_ = 0;                 // at Start
  std::optional<double> validation_loss_;  // the last, under causal routing
  int64_t loaded_step_ = -1;               // of the checkpoint that the run was resumed from
  int64_t skipped_in_a_row_ = 0;
  double flops_per_token_ = 0;  // of the last step's documents; exact convention, training
  double peak_flops_ = 0;       // of this device, measured
  double start_time_ = 0;
};

}  // namespace fathom
