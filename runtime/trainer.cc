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
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/open_weights.h"
#include "runtime/evaluation.h"
#include "runtime/memory_report.h"
#include "runtime/optimizer/schedule.h"
#include "runtime/peak_rate.h"
#include "runtime/run_state.h"

namespace fathom {
namespace {

// A run that skips this many steps in a row, for losses or gradients that are not finite, ends.
constexpr int64_t kSkippedStepsToEnd = 3;

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Seconds since 1970.
double WallTime() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

Trainer::Trainer(const Job& job, const TrainerEnvironment& environment)
    : job_(job), environment_(environment) {}

absl::Status Trainer::Start(bool resume) {
  start_time_ = Now();
  std::string checkpoint;
  FATHOM_RETURN_IF_ERROR(OpenOutput(resume, &checkpoint));
  FATHOM_ASSIGN_OR_RETURN(data_, OpenJobData(environment_.files, job_, environment_.log));

  Device& device = environment_.device;
  const DType dtype = ComputeDType(job_.train.precision);
  FATHOM_ASSIGN_OR_RETURN(
      model_, LanguageModel::Create(job_.model, dtype, job_.train.sequence_length, device,
                                    /*with_gradients=*/true));
  FATHOM_ASSIGN_OR_RETURN(optimizer_, Optimizer::Create(job_.optimizer, model_->parameters(),
                                                        device, model_->stream()));
  FATHOM_ASSIGN_OR_RETURN(scalars_, Buffer::Allocate(device, 2 * sizeof(double)));
  losses_ = scalars_.View(0, DType::kFloat64, {2});
  selected_.resize(job_.model.plan.layers.size());

  if (!checkpoint.empty()) {
    FATHOM_RETURN_IF_ERROR(Load(checkpoint));
  } else if (!job_.train.init_from.empty()) {
    FATHOM_RETURN_IF_ERROR(LoadInitialWeights());
  } else {
    FATHOM_RETURN_IF_ERROR(
        InitializeParameters(model_->parameters(), job_.train.seed, model_->stream()));
  }
  FATHOM_ASSIGN_OR_RETURN(debug_,
                          StepDebug::Create(job_, environment_.files, environment_.log, step_ + 1,
                                            model_->parameters(), *optimizer_, model_->stream()));
  const std::string metrics = JoinPath(job_.train.output, "metrics.jsonl");
  FATHOM_ASSIGN_OR_RETURN(
      metrics_, step_ == 0 ? MetricsWriter::Create(environment_.files, metrics)
                           : MetricsWriter::OpenForResume(environment_.files, metrics, step_));
  if (job_.metrics.tensorboard) {
    FATHOM_ASSIGN_OR_RETURN(
        events_, EventWriter::Create(environment_.files, job_.train.output, step_, WallTime()));
  }

  flops_per_token_ = CountFlopsPerToken(job_.model, job_.train.sequence_length).exact_training;
  FATHOM_ASSIGN_OR_RETURN(peak_flops_, MeasureMatMulRate(device, dtype));
  first_step_ = step_;
  const BatchShare share = {.global_batch = job_.train.global_batch,
                            .micro_batch = job_.train.micro_batch};
  batches_ = std::make_unique<Prefetcher>(*data_.train, share, job_.train.sequence_length,
                                          first_step_ + 1);
  environment_.log(absl::StrFormat(
      "%s: %d layers, %.2f M parameters, on %s (%s, matrix products at %.0f GFLOP/s)", job_.name,
      job_.model.plan.layers.size(), model_->parameters().elements() / 1e6, device.description(),
      std::string(Name(dtype)), peak_flops_ / 1e9));
  return dtype == DType::kBFloat16 ? WarnIfSlow() : absl::OkStatus();
}

absl::Status Trainer::WarnIfSlow() {
  FATHOM_ASSIGN_OR_RETURN(const double float_flops,
                          MeasureMatMulRate(environment_.device, DType::kFloat32));
  if (peak_flops_ >= float_flops) return absl::OkStatus();
  environment_.log(absl::StrFormat(
      "warning: here matrix products in bfloat16 are slower than in float32, %.0f against %.0f "
      "GFLOP/s: train.precision FP32 would be faster and more exact",
      peak_flops_ / 1e9, float_flops / 1e9));
  return absl::OkStatus();
}

absl::Status Trainer::OpenOutput(bool resume, std::string* checkpoint) {
  FileSystem& files = environment_.files;
  const std::string& output = job_.train.output;
  FATHOM_ASSIGN_OR_RETURN(const std::optional<std::string> latest, ReadLatest(files, output));
  if (latest.has_value() && resume) {
    *checkpoint = *latest;
    return absl::OkStatus();
  }
  if (!resume && (latest.has_value() || files.Exists(JoinPath(output, "metrics.jsonl")))) {
    return absl::AlreadyExistsError(
        absl::StrCat("train.output ", output,
                     " holds a run already: add --resume to continue it, or name another with "
                     "--set train.output=DIRECTORY"));
  }
  if (resume) {
    environment_.log(absl::StrCat(output, " has no checkpoint to resume from: starting at step 1"));
  }
  return files.CreateDirectories(output);
}

absl::Status Trainer::Load(const std::string& directory) {
  FATHOM_ASSIGN_OR_RETURN(const Checkpoint checkpoint,
                          OpenCheckpoint(environment_.files, directory));
  step_ = saved_step_ = checkpoint.contents.step;
  const int64_t expected = step_ * job_.train.global_batch;
  if (checkpoint.contents.consumed_sequences != expected) {
    return absl::InvalidArgumentError(absl::StrCat(
        directory, " was trained on ", checkpoint.contents.consumed_sequences, " sequences in its ",
        step_, " steps, but train.global_batch ", job_.train.global_batch, " would have consumed ",
        expected, ": resume with the batch of the run"));
  }
  FATHOM_RETURN_IF_ERROR(CheckRecordedTokenizer(checkpoint.contents.integers, directory, data_));
  FATHOM_RETURN_IF_ERROR(LoadWeights(*checkpoint.weights, model_->parameters(), model_->stream()));
  FATHOM_RETURN_IF_ERROR(LoadOptimizer(*checkpoint.optimizer, *optimizer_, model_->stream()));
  const auto& integers = checkpoint.contents.integers;
  if (const auto found = integers.find("skipped_in_a_row"); found != integers.end()) {
    skipped_in_a_row_ = found->second;
  }
  environment_.log(absl::StrCat("resumed from ", directory, ", step ", step_));
  return absl::OkStatus();
}

absl::Status Trainer::LoadInitialWeights() {
  FATHOM_ASSIGN_OR_RETURN(const std::unique_ptr<SafetensorsFile> file,
                          OpenWeights(environment_.files, job_.train.init_from));
  return LoadWeights(*file, model_->parameters(), model_->stream());
}

absl::Status Trainer::Run() {
  if (step_ == 0) FATHOM_RETURN_IF_ERROR(Validate(0));
  const int64_t steps = job_.train.steps;
  while (step_ < steps && !ShouldStop()) {
    const int64_t step = step_ + 1;
    const double started = Now();
    const double learning_rate =
        LearningRate(job_.schedule, job_.optimizer.learning_rate, step, steps);
    FATHOM_RETURN_IF_ERROR(TrainStep(step, learning_rate));
    FATHOM_ASSIGN_OR_RETURN(const StepOutcome outcome, ReadOutcome());
    step_ = step;
    FATHOM_RETURN_IF_ERROR(Record(outcome, learning_rate, Now() - started));
    FATHOM_RETURN_IF_ERROR(CountSkippedSteps(outcome));
    FATHOM_RETURN_IF_ERROR(Watch(outcome));
    if (IsDue(job_.train.validate_every)) FATHOM_RETURN_IF_ERROR(Validate(step));
    if (IsDue(job_.checkpoint.every)) FATHOM_RETURN_IF_ERROR(Save());
  }
  return saved_step_ == step_ ? absl::OkStatus() : Save();
}

absl::Status Trainer::TrainStep(int64_t step, double learning_rate) {
  Stream& stream = model_->stream();
  FATHOM_RETURN_IF_ERROR(debug_->BeginStep(step));
  Launch(stream, Fill{.value = 0, .y = model_->parameters().gradients()});
  Launch(stream, Fill{.value = 0, .y = losses_});
  FATHOM_ASSIGN_OR_RETURN(const StepBatches* batches, batches_->Take());
  // A batch without a label that counts has the loss 0.
  const double label_weight =
      1.0 / static_cast<double>(std::max<int64_t>(1, batches->counted_labels));
  for (const HostBatch& host : batches->micro_batches) RunMicroBatch(host, label_weight);
  FATHOM_RETURN_IF_ERROR(debug_->AfterBackward());
  if (environment_.before_update) environment_.before_update(step, model_->parameters());
  optimizer_->Step(stream, model_->arena(), learning_rate, losses_);
  return absl::OkStatus();
}

void Trainer::RunMicroBatch(const HostBatch& host, double label_weight) {
  Stream& stream = model_->stream();
  Arena& arena = model_->arena();
  Stage& stage = model_->stage();
  const double tokens = static_cast<double>(job_.train.global_batch * job_.train.sequence_length);
  ArenaScope scope(arena);
  const MicroBatch batch = Upload(host, stream, arena);
  Pass pass = stage.NewPass(stream, arena, batch);
  pass.training = true;
  pass.auxiliary_weight = job_.model.routing_coefficient / tokens;

  const Tensor losses = arena.New(StatisticsDType(model_->dtype()), {batch.rows()});
  debug_->BeforeForward(pass);
  stage.Forward(pass, batch);
  debug_->AfterForward(host, pass);
  stage.Loss(pass, batch, label_weight, losses);
  Launch(stream, Sum{.x = losses, .factor = label_weight, .sum = losses_.Rows(0, 1)});
  Launch(stream, Sum{.x = pass.auxiliary_loss, .sum = losses_.Rows(1, 2)});
  stream.CopyToHost(pass.selected, selected_.data());
  stage.Backward(pass, batch);
}

absl::StatusOr<Trainer::StepOutcome> Trainer::ReadOutcome() {
  Stream& stream = model_->stream();
  double losses[2], step[kStepScalars];
  stream.CopyToHost(losses_, losses);
  stream.CopyToHost(optimizer_->step(), step);
  FATHOM_RETURN_IF_ERROR(stream.Synchronize());
  return StepOutcome{.loss = losses[0],
                     .auxiliary_loss = losses[1],
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
                           .seconds = SecondsSinceStart()};
  FATHOM_RETURN_IF_ERROR(metrics_->Write(record));
  if (events_ != nullptr) FATHOM_RETURN_IF_ERROR(events_->Write(record, WallTime()));
  FATHOM_RETURN_IF_ERROR(debug_->EndStep(FormatRecord(record)));
  const int64_t steps_left = job_.train.steps - step_;
  const double seconds_per_step = SecondsSinceStart() / static_cast<double>(step_ - first_step_);
  environment_.progress.Update({.step = step_,
                                .steps = job_.train.steps,
                                .loss = outcome.loss,
                                .validation_loss = validation_loss_,
                                .gradient_norm = outcome.gradient_norm,
                                .learning_rate = learning_rate,
                                .tokens_per_second = tokens_per_second,
                                .utilisation = tokens_per_second * flops_per_token_ / peak_flops_,
                                .routed_share = RoutedShare(),
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
  environment_.log(absl::StrFormat(
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
    environment_.log(absl::StrFormat(
        "step %d: loss %.4f is a spike, %.1f deviations above the running mean %.4f (spikes so "
        "far: %d)",
        step_, outcome.loss, spike->deviations, spike->mean, spike->count));
  }
  if (step_ != first_step_ + 1) return absl::OkStatus();
  FATHOM_ASSIGN_OR_RETURN(const MemoryPlan planned, PlanMemory(job_));
  for (const std::string& line :
       DescribeMemory(planned, MeasureMemory(*model_, *optimizer_), PeakResidentBytes())) {
    environment_.log(line);
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
                          Evaluate(*model_, *data_.validation, options));
  options.routing = Routing::kCausal;
  FATHOM_ASSIGN_OR_RETURN(const EvaluationResult causal,
                          Evaluate(*model_, *data_.validation, options));
  const ValidationRecord record{.step = step,
                                .consumed_sequences = step * job_.train.global_batch,
                                .loss_topk = topk.loss,
                                .loss_causal = causal.loss,
                                .seconds = SecondsSinceStart()};
  FATHOM_RETURN_IF_ERROR(metrics_->Write(record));
  if (events_ != nullptr) FATHOM_RETURN_IF_ERROR(events_->Write(record, WallTime()));
  validation_loss_ = causal.loss;
  environment_.progress.Print(
      absl::StrFormat("step %d  validation loss %.4f causal (%.1f%% of tokens routed), %.4f top-k",
                      step, causal.loss, 100 * causal.routed_share(job_.model.plan), topk.loss));
  return absl::OkStatus();
}

absl::Status Trainer::Save() {
  Stream& stream = model_->stream();
  HostTensors weights, optimizer;
  FATHOM_RETURN_IF_ERROR(CopyWeights(model_->parameters(), stream, &weights));
  FATHOM_RETURN_IF_ERROR(CopyOptimizer(*optimizer_, stream, &optimizer));
  std::map<std::string, int64_t> integers = {{"skipped_in_a_row", skipped_in_a_row_}};
  RecordTokenizer(data_, &integers);
  FATHOM_RETURN_IF_ERROR(WriteCheckpoint(environment_.files, job_.train.output,
                                         {.step = step_,
                                          .consumed_sequences = step_ * job_.train.global_batch,
                                          .job_text = job_.text,
                                          .weights = weights.arrays(),
                                          .optimizer = optimizer.arrays(),
                                          .integers = integers,
                                          .numbers = {}}));
  saved_step_ = step_;
  return RemoveOldCheckpoints(environment_.files, job_.train.output, job_.checkpoint);
}

bool Trainer::IsDue(int64_t every) const {
  return step_ == job_.train.steps || (every > 0 && step_ % every == 0);
}

bool Trainer::ShouldStop() const {
  if (environment_.stop_signal.load() != 0) return true;
  const double limit = job_.train.maximum_minutes;
  return limit > 0 && SecondsSinceStart() > 60 * limit;
}

double Trainer::RoutedShare() const {
  const double rows = static_cast<double>(job_.train.micro_batch * job_.train.sequence_length);
  double share = 0;
  int64_t sparse = 0;
  for (size_t layer = 0; layer < selected_.size(); ++layer) {
    if (job_.model.plan.layers[layer].spec.kind != LayerKind::kSparse) continue;
    share += selected_[layer] / rows;
    ++sparse;
  }
  return sparse == 0 ? 1 : share / static_cast<double>(sparse);
}

double Trainer::SecondsSinceStart() const { return Now() - start_time_; }

}  // namespace fathom
