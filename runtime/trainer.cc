#include "runtime/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "absl/strings/str_format.h"
#include "core/accounting.h"
#include "core/status.h"
#include "kernels/elementwise.h"
#include "kernels/optimizer.h"
#include "parallel/agreement.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/checkpoint_directory.h"
#include "runtime/checkpoint/open_weights.h"
#include "runtime/evaluation.h"
#include "runtime/memory_report.h"
#include "runtime/optimizer/schedule.h"
#include "runtime/peak_rate.h"
#include "runtime/pipeline_report.h"
#include "runtime/run_state.h"

namespace fathom {
namespace {

// A run that skips this many steps in a row, for losses or gradients that are not finite, ends.
constexpr int64_t kSkippedStepsToEnd = 3;
// Of a checkpoint's counters.
constexpr char kSkippedInARow[] = "skipped_in_a_row";

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Seconds since 1970.
double WallTime() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// The share of tokens that a sparse layer sees in training, mean over the sparse layers.
double RoutedShare(const LayerPlan& plan, int64_t length) {
  double share = 0;
  int64_t sparse = 0;
  for (const PlannedLayer& layer : plan.layers) {
    if (layer.spec.kind != LayerKind::kSparse) continue;
    share += static_cast<double>(length / layer.spec.sparsity) / static_cast<double>(length);
    ++sparse;
  }
  return sparse == 0 ? 1 : share / static_cast<double>(sparse);
}

// Over the layers with experts; `loads` as TrainingModel has them.
std::optional<TrainRecord::ExpertLoads> WorstLoads(const LayerPlan& plan,
                                                   const std::vector<double>& loads) {
  if (loads.empty()) return std::nullopt;
  TrainRecord::ExpertLoads worst;
  const size_t layers = plan.layers.size();
  for (size_t layer = 0; layer < layers; ++layer) {
    if (!plan.layers[layer].spec.experts) continue;
    worst.violation = std::max(worst.violation, loads[layer]);
    worst.entropy = std::min(worst.entropy, loads[layers + layer]);
  }
  return worst;
}

// What to do about a checkpoint of the run in `output` that is damaged.
absl::Status WithAdvice(const absl::Status& status, const std::string& output) {
  if (!absl::IsDataLoss(status)) return status;
  return absl::DataLossError(absl::StrCat(status.message(),
                                          "; the run goes on from an older checkpoint when LATEST ",
                                          "in ", output, " names it"));
}

}  // namespace

Trainer::Trainer(const Job& job, const TrainerEnvironment& environment)
    : job_(job),
      environment_(environment),
      alone_(environment.groups == nullptr ? RankGroups::Alone() : nullptr),
      groups_(environment.groups == nullptr ? *alone_ : *environment.groups) {}

absl::Status Trainer::Start(bool resume) {
  start_time_ = Now();
  Device& device = environment_.device;
  if (!(groups_.sizes() == MeshOf(job_.parallel))) {
    return absl::InvalidArgumentError(absl::StrCat("the job needs ", job_.parallel.ranks(),
                                                   " ranks (", MeshOf(job_.parallel).ToString(),
                                                   "), but there are ", groups_.mesh().world()));
  }
  absl::StatusOr<std::string> found = "";
  if (groups_.first()) found = OpenOutput(resume);
  FATHOM_ASSIGN_OR_RETURN(const std::string checkpoint, FromFirst(found));
  FATHOM_RETURN_IF_ERROR(OpenData());
  FATHOM_ASSIGN_OR_RETURN(training_, TrainingModel::Create(job_, groups_, device));
  Stream& stream = training_->stream();
  FATHOM_ASSIGN_OR_RETURN(totals_buffer_, Buffer::Allocate(device, kStepTotals * sizeof(double)));
  totals_ = totals_buffer_.View(0, DType::kFloat64, {kStepTotals});

  ParameterTable& parameters = training_->parameters();
  if (!checkpoint.empty()) {
    FATHOM_RETURN_IF_ERROR(WithAdvice(Load(checkpoint), job_.train.output));
  } else if (!job_.train.init_from.empty()) {
    FATHOM_RETURN_IF_ERROR(LoadInitialWeights());
  } else {
    FATHOM_RETURN_IF_ERROR(InitializeParameters(parameters, job_.train.seed, stream));
  }
  const BatchShare share = ShareOf(job_, groups_.coordinates());
  FATHOM_ASSIGN_OR_RETURN(
      debug_, StepDebug::Create(
                  job_, environment_.files, [this](const std::string& line) { Log(line); },
                  step_ + 1, parameters, training_->optimizer(), share, groups_, stream));
  saver_ = std::make_unique<CheckpointSaver>(environment_.files, job_, groups_, stream,
                                             [this](const std::string& line) { Log(line); });
  timeline_ = std::make_unique<StepTimeline>(
      job_, environment_.files, [this](const std::string& line) { Log(line); }, groups_, stream);
  FATHOM_RETURN_IF_ERROR(OpenRecords());

  const DType dtype = ComputeDType(job_.train.precision);
  FATHOM_ASSIGN_OR_RETURN(peak_flops_, MeasureMatMulRate(device, dtype));
  first_step_ = step_;
  batches_ = std::make_unique<Prefetcher>(*data_.train, share, job_.train.sequence_length,
                                          first_step_ + 1);
  Log(absl::StrFormat(
      "%s: %d layers, %.2f M parameters, on %s (%s, matrix products at %.0f GFLOP/s)", job_.name,
      job_.model.plan.layers.size(), CountParameters(job_.model).total / 1e6, device.description(),
      std::string(Name(dtype)), peak_flops_ / 1e9));
  if (groups_.mesh().world() > 1) Log(absl::StrCat("ranks: ", groups_.sizes().ToString()));
  FATHOM_ASSIGN_OR_RETURN(const std::string pipeline, DescribePipeline(job_));
  if (!pipeline.empty()) Log(pipeline);
  return dtype == DType::kBFloat16 ? WarnIfSlow() : absl::OkStatus();
}

void Trainer::Log(const std::string& line) const {
  if (groups_.first()) environment_.log(line);
}

absl::Status Trainer::OpenData() {
  const auto log = [this](const std::string& line) { Log(line); };
  const auto open = [&]() -> absl::StatusOr<std::string> {
    FATHOM_ASSIGN_OR_RETURN(data_, OpenJobData(environment_.files, job_, log));
    return "";
  };
  absl::StatusOr<std::string> opened = "";
  if (groups_.first()) opened = open();
  FATHOM_RETURN_IF_ERROR(FromFirst(opened).status());
  return groups_.first() ? absl::OkStatus() : open().status();
}

absl::StatusOr<std::string> Trainer::FromFirst(const absl::StatusOr<std::string>& mine) {
  const std::unique_ptr<Stream> stream = environment_.device.NewStream();
  return FromFirstRank(groups_.world(), *stream, mine);
}

absl::Status Trainer::OpenRecords() {
  if (!groups_.first()) return absl::OkStatus();
  const std::string metrics = JoinPath(job_.train.output, "metrics.jsonl");
  FATHOM_ASSIGN_OR_RETURN(
      metrics_, step_ == 0 ? MetricsWriter::Create(environment_.files, metrics)
                           : MetricsWriter::OpenForResume(environment_.files, metrics, step_));
  if (job_.metrics.tensorboard) {
    FATHOM_ASSIGN_OR_RETURN(
        events_, EventWriter::Create(environment_.files, job_.train.output, step_, WallTime()));
  }
  return absl::OkStatus();
}

absl::Status Trainer::WarnIfSlow() {
  FATHOM_ASSIGN_OR_RETURN(const double float_flops,
                          MeasureMatMulRate(environment_.device, DType::kFloat32));
  if (peak_flops_ >= float_flops) return absl::OkStatus();
  Log(absl::StrFormat(
      "warning: here matrix products in bfloat16 are slower than in float32, %.0f against %.0f "
      "GFLOP/s: train.precision FP32 would be faster and more exact",
      peak_flops_ / 1e9, float_flops / 1e9));
  return absl::OkStatus();
}

absl::StatusOr<std::string> Trainer::OpenOutput(bool resume) {
  FileSystem& files = environment_.files;
  const std::string& output = job_.train.output;
  FATHOM_ASSIGN_OR_RETURN(const std::optional<std::string> latest, ReadLatest(files, output));
  if (latest.has_value() && resume) {
    FATHOM_RETURN_IF_ERROR(WithAdvice(CheckResumable(*latest), output));
    return *latest;
  }
  if (!resume && (latest.has_value() || files.Exists(JoinPath(output, "metrics.jsonl")))) {
    return absl::AlreadyExistsError(
        absl::StrCat("train.output ", output,
                     " holds a run already: add --resume to continue it, or name another with "
                     "--set train.output=DIRECTORY"));
  }
  FATHOM_RETURN_IF_ERROR(CreateDurableDirectories(files, output));
  if (resume) {
    std::string unfinished;
    FATHOM_ASSIGN_OR_RETURN(const std::vector<std::string> names, files.List(output));
    for (const std::string& name : names) {
      if (IsUnfinishedCheckpoint(name)) unfinished = absl::StrCat(" (", name, " is not finished)");
    }
    Log(absl::StrCat(output, " has no checkpoint to resume from", unfinished,
                     ": starting at step 1"));
  }
  return "";
}

absl::Status Trainer::CheckResumable(const std::string& directory) {
  FATHOM_ASSIGN_OR_RETURN(const Checkpoint checkpoint,
                          OpenCheckpoint(environment_.files, directory));
  const Manifest& manifest = *checkpoint.manifest;
  if (checkpoint.optimizer->tensors().empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(directory, " holds weights alone, without the optimizer's state that a run ",
                     "goes on with: start a run from it with train.init_from"));
  }
  const int64_t expected = manifest.step * job_.train.global_batch;
  if (manifest.consumed_sequences == expected) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(directory, " was trained on ", manifest.consumed_sequences, " sequences in its ",
                   manifest.step, " steps, but train.global_batch ", job_.train.global_batch,
                   " would have consumed ", expected, ": resume with the batch of the run"));
}

absl::Status Trainer::Load(const std::string& directory) {
  FATHOM_ASSIGN_OR_RETURN(const Checkpoint checkpoint,
                          OpenCheckpoint(environment_.files, directory));
  const Manifest& manifest = *checkpoint.manifest;
  step_ = loaded_step_ = manifest.step;
  FATHOM_RETURN_IF_ERROR(CheckRecordedTokenizer(manifest.integers, directory, data_));
  Stream& stream = training_->stream();
  FATHOM_RETURN_IF_ERROR(LoadWeights(*checkpoint.weights, ParameterNames(job_.model),
                                     training_->parameters(), stream));
  FATHOM_RETURN_IF_ERROR(LoadOptimizer(*checkpoint.optimizer, training_->optimizer(), stream));
  if (const auto found = manifest.integers.find(kSkippedInARow); found != manifest.integers.end()) {
    skipped_in_a_row_ = found->second;
  }
  Log(absl::StrCat("resumed from ", directory, ", step ", step_));
  return absl::OkStatus();
}

absl::Status Trainer::LoadInitialWeights() {
  FATHOM_ASSIGN_OR_RETURN(const std::unique_ptr<TensorSource> source,
                          OpenWeights(environment_.files, job_.train.init_from));
  return LoadWeights(*source, ParameterNames(job_.model), training_->parameters(),
                     training_->stream());
}

absl::Status Trainer::Run() {
  if (step_ == 0) FATHOM_RETURN_IF_ERROR(Validate(0));
  const int64_t steps = job_.train.steps;
  while (step_ < steps && !ShouldStop()) {
    const int64_t step = step_ + 1;
    const double started = Now();
    const double learning_rate =
        LearningRate(job_.schedule, job_.optimizer.learning_rate, step, steps);
    timeline_->BeginStep(step);
    FATHOM_RETURN_IF_ERROR(TrainStep(step, learning_rate));
    FATHOM_ASSIGN_OR_RETURN(const StepOutcome outcome, ReadOutcome());
    FATHOM_RETURN_IF_ERROR(timeline_->EndStep(step));
    step_ = step;
    FATHOM_RETURN_IF_ERROR(Record(outcome, learning_rate, Now() - started));
    if (const absl::Status counted = CountSkippedSteps(outcome); !counted.ok()) {
      // On all ranks alike: what is being saved is not given up.
      FATHOM_RETURN_IF_ERROR(saver_->Finish());
      ReportFailedSave();
      return counted;
    }
    FATHOM_RETURN_IF_ERROR(Watch(outcome));
    FATHOM_RETURN_IF_ERROR(saver_->Poll());
    ReportFailedSave();
    if (IsDue(job_.train.validate_every)) FATHOM_RETURN_IF_ERROR(Validate(step));
    if (step < steps && IsDue(job_.checkpoint.every)) {
      FATHOM_RETURN_IF_ERROR(Save(job_.checkpoint.async));
      ReportFailedSave();
    }
  }
  return SaveAtTheEnd();
}

absl::Status Trainer::TrainStep(int64_t step, double learning_rate) {
  Stream& stream = training_->stream();
  FATHOM_RETURN_IF_ERROR(debug_->BeginStep(step));
  Launch(stream, Fill{.value = 0, .y = totals_});
  FATHOM_ASSIGN_OR_RETURN(const StepBatches* batches, batches_->Take());
  flops_per_token_ = CountFlopsPerToken(job_.model, job_.train.sequence_length,
                                        batches->pairs / job_.train.global_batch)
                         .exact_training;
  // A batch without a label that counts has the loss 0.
  const double label_weight =
      1.0 / static_cast<double>(std::max<int64_t>(1, batches->counted_labels));
  const PassHooks hooks{
      .before_forward = [this](int64_t m, Pass& pass) { debug_->BeforeForward(m, pass); },
      .after_forward = [this](int64_t m, const HostBatch& host,
                              const Pass& pass) { debug_->AfterForward(m, host, pass); },
      .gradients_done = {}};
  FATHOM_RETURN_IF_ERROR(
      training_->ComputeGradients(batches->micro_batches, label_weight, totals_, hooks));
  FATHOM_RETURN_IF_ERROR(debug_->AfterBackward());
  if (environment_.before_update) environment_.before_update(step, training_->parameters());
  wants_stop_ = WantsToStop();
  stream.CopyToDevice(&wants_stop_, totals_.Rows(kStopTotal, kStopTotal + 1));
  return training_->Update(learning_rate, totals_);
}

absl::StatusOr<Trainer::StepOutcome> Trainer::ReadOutcome() {
  Stream& stream = training_->stream();
  double totals[kStepTotals], step[kStepScalars];
  stream.CopyToHost(totals_, totals);
  stream.CopyToHost(training_->optimizer().step(), step);
  const Tensor& loads = training_->expert_loads();
  std::vector<double> expert_loads(loads.absent() ? 0 : loads.elements());
  if (!expert_loads.empty()) stream.CopyToHost(loads, expert_loads.data());
  FATHOM_RETURN_IF_ERROR(stream.Synchronize());
  stop_agreed_ = totals[kStopTotal] > 0;
  return StepOutcome{.loss = totals[kLossTotal],
                     .auxiliary_loss = totals[kAuxiliaryLossTotal],
                     .experts = WorstLoads(job_.model.plan, expert_loads),
                     .gradient_norm = step[kGradientNorm],
                     .applied = step[kApply] != 0};
}

absl::Status Trainer::Record(const StepOutcome& outcome, double learning_rate, double seconds) {
  const double tokens = static_cast<double>(job_.train.global_batch * job_.train.sequence_length);
  const double tokens_per_second = tokens / seconds;
  const TrainRecord record{.step = step_,
                           .consumed_sequences = step_ * job_.train.global_batch,
                           .loss = outcome.loss,
                           .auxiliary_loss = outcome.auxiliary_loss,
                           .gradient_norm = outcome.gradient_norm,
                           .learning_rate = learning_rate,
                           .tokens_per_second = tokens_per_second,
                           .seconds = SecondsSinceStart(),
                           .experts = outcome.experts};
  if (groups_.first()) FATHOM_RETURN_IF_ERROR(metrics_->Write(record));
  if (events_ != nullptr) FATHOM_RETURN_IF_ERROR(events_->Write(record, WallTime()));
  FATHOM_RETURN_IF_ERROR(debug_->EndStep(FormatRecord(record)));
  if (!groups_.first()) return absl::OkStatus();
  const int64_t steps_left = job_.train.steps - step_;
  const double seconds_per_step = SecondsSinceStart() / static_cast<double>(step_ - first_step_);
  environment_.progress.Update(
      {.step = step_,
       .steps = job_.train.steps,
       .loss = outcome.loss,
       .validation_loss = validation_loss_,
       .gradient_norm = outcome.gradient_norm,
       .learning_rate = learning_rate,
       .tokens_per_second = tokens_per_second,
       .utilisation = tokens_per_second * flops_per_token_ / (peak_flops_ * groups_.mesh().world()),
       .routed_share = RoutedShare(job_.model.plan, job_.train.sequence_length),
       .seconds_left = seconds_per_step * static_cast<double>(steps_left)},
      Now());
  return absl::OkStatus();
}

absl::Status Trainer::CountSkippedSteps(const StepOutcome& outcome) {
  if (outcome.applied) {
    skipped_in_a_row_ = 0;
    return absl::OkStatus();
  }
  ++skipped_in_a_row_;
  Log(absl::StrFormat(
      "step %d was skipped: loss %g, gradient norm %g; weights and momenta stay as they were",
      step_, outcome.loss, outcome.gradient_norm));
  if (skipped_in_a_row_ < kSkippedStepsToEnd) return absl::OkStatus();
  return absl::DataLossError(absl::StrFormat(
      "loss or gradient norm was not finite in %d steps in a row, the last of them step %d: the "
      "run ends (its last checkpoint stays as it is)",
      skipped_in_a_row_, step_));
}

absl::Status Trainer::Watch(const StepOutcome& outcome) {
  if (const std::optional<LossWatch::Spike> spike = loss_watch_.Add(outcome.loss)) {
    Log(absl::StrFormat(
        "step %d: loss %.4f is a spike, %.1f deviations above the running mean %.4f (spikes so "
        "far: %d)",
        step_, outcome.loss, spike->deviations, spike->mean, spike->count));
  }
  if (step_ != first_step_ + 1 || !groups_.first()) return absl::OkStatus();
  FATHOM_ASSIGN_OR_RETURN(const MemoryPlan planned, PlanMemory(job_, groups_.rank()));
  for (const std::string& line :
       DescribeMemory(planned, MeasureMemory(*training_), PeakResidentBytes())) {
    Log(line);
  }
  return absl::OkStatus();
}

absl::Status Trainer::Validate(int64_t step) {
  if (data_.validation == nullptr) return absl::OkStatus();
  const int64_t limit = job_.train.validation_sequences;
  EvaluationOptions options{.routing = Routing::kTopK, .batch = job_.train.micro_batch};
  options.sequences =
      limit == 0 ? data_.validation->count() : std::min(limit, data_.validation->count());
  FATHOM_ASSIGN_OR_RETURN(const EvaluationResult topk,
                          Evaluate(training_->runner(), *data_.validation, options));
  options.routing = Routing::kCausal;
  FATHOM_ASSIGN_OR_RETURN(const EvaluationResult causal,
                          Evaluate(training_->runner(), *data_.validation, options));
  const ValidationRecord record{.step = step,
                                .consumed_sequences = step * job_.train.global_batch,
                                .loss_topk = topk.loss,
                                .loss_causal = causal.loss,
                                .seconds = SecondsSinceStart()};
  validation_loss_ = causal.loss;
  if (!groups_.first()) return absl::OkStatus();
  FATHOM_RETURN_IF_ERROR(metrics_->Write(record));
  if (events_ != nullptr) FATHOM_RETURN_IF_ERROR(events_->Write(record, WallTime()));
  environment_.progress.Print(
      absl::StrFormat("step %d  validation loss %.4f causal (%.1f%% of tokens routed), %.4f top-k",
                      step, causal.loss, 100 * causal.routed_share(job_.model.plan), topk.loss));
  return absl::OkStatus();
}

absl::Status Trainer::Save(bool background) {
  SaveRequest request{.step = step_,
                      .consumed_sequences = step_ * job_.train.global_batch,
                      .weights = WeightPieces(training_->parameters(), groups_),
                      .optimizer = OptimizerPieces(training_->optimizer(), groups_),
                      .integers = {{kSkippedInARow, skipped_in_a_row_}}};
  RecordTokenizer(data_, &request.integers);
  return saver_->Save(request, background);
}

absl::Status Trainer::SaveAtTheEnd() {
  FATHOM_RETURN_IF_ERROR(saver_->Finish());
  ReportFailedSave();
  if (std::max(saver_->saved_step(), loaded_step_) == step_) return absl::OkStatus();
  FATHOM_RETURN_IF_ERROR(Save(/*background=*/false));
  const std::optional<CheckpointSaver::Failure> failure = saver_->TakeFailure();
  if (!failure.has_value()) return absl::OkStatus();
  // Never a code that would say that the job was refused.
  const bool of_another_rank = absl::IsAborted(failure->status);
  return absl::Status(of_another_rank ? absl::StatusCode::kAborted : absl::StatusCode::kDataLoss,
                      absl::StrCat("step ", failure->step, ", the last one, could not be saved: ",
                                   failure->status.message()));
}

void Trainer::ReportFailedSave() {
  const std::optional<CheckpointSaver::Failure> failure = saver_->TakeFailure();
  if (!failure.has_value()) return;
  Log(absl::StrCat("step ", failure->step, " could not be saved: ", failure->status.message(),
                   "; the run goes on, and what was saved before is as it was"));
}

bool Trainer::IsDue(int64_t every) const {
  return step_ == job_.train.steps || (every > 0 && step_ % every == 0);
}

bool Trainer::WantsToStop() const {
  if (environment_.stop_signal.load() != 0) return true;
  const double limit = job_.train.maximum_minutes;
  return groups_.first() && limit > 0 && SecondsSinceStart() > 60 * limit;
}

bool Trainer::ShouldStop() const {
  // Several ranks stop at the same step: that after which they agreed.
  return stop_agreed_ || (groups_.mesh().world() == 1 && WantsToStop());
}

double Trainer::SecondsSinceStart() const { return Now() - start_time_; }

}  // namespace fathom
