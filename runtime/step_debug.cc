#include "runtime/step_debug.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "core/status.h"

namespace fathom {

StepDebug::StepDebug(const Job& job, FileSystem& files, std::function<void(const std::string&)> log,
                     const ParameterTable& parameters, const Optimizer& optimizer,
                     const BatchShare& share, RankGroups& groups, Stream& stream)
    : job_(job),
      files_(files),
      log_(std::move(log)),
      parameters_(parameters),
      optimizer_(optimizer),
      share_(share),
      groups_(groups),
      stream_(stream),
      dump_directory_(job.debug.dump_dir) {
  if (dump_directory_.empty()) {
    dump_directory_ = JoinPath(job.train.output, absl::StrFormat("dump_%08d", job.debug.dump_step));
  }
}

absl::StatusOr<std::unique_ptr<StepDebug>> StepDebug::Create(
    const Job& job, FileSystem& files, std::function<void(const std::string&)> log,
    int64_t first_step, const ParameterTable& parameters, const Optimizer& optimizer,
    const BatchShare& share, RankGroups& groups, Stream& stream) {
  std::unique_ptr<StepDebug> debug(
      new StepDebug(job, files, std::move(log), parameters, optimizer, share, groups, stream));
  if (!job.debug.selection_file.empty()) {
    FATHOM_ASSIGN_OR_RETURN(debug->replay_,
                            SelectionReplay::Read(files, job.debug.selection_file, job));
  }
  const int64_t dump_step = job.debug.dump_step;
  if (dump_step >= first_step) {
    FATHOM_RETURN_IF_ERROR(StepDump::CheckDirectory(files, debug->dump_directory_));
  } else if (dump_step > 0) {
    debug->log_(
        absl::StrFormat("debug.dump_step %d is done already: nothing will be dumped", dump_step));
  }
  return debug;
}

absl::Status StepDebug::BeginStep(int64_t step) {
  step_ = step;
  flips_ = {};
  expert_flips_ = {};
  status_ = absl::OkStatus();
  if (step != job_.debug.dump_step) return absl::OkStatus();
  dump_.emplace(files_, dump_directory_, share_, job_.train.sequence_length, groups_, stream_);
  return dump_->Begin(parameters_, optimizer_);
}

void StepDebug::BeforeForward(int64_t micro_batch, Pass& pass) {
  if (replay_ == nullptr) return;
  const int64_t in_step = share_.MicroBatchInStep(micro_batch);
  pass.replay = replay_->Upload(in_step, stream_, pass.arena);
  pass.expert_replay = replay_->UploadExperts(in_step, stream_, pass.arena);
}

void StepDebug::AfterForward(int64_t micro_batch, const HostBatch& host, const Pass& pass) {
  if (dump_.has_value()) {
    dump_->AddTokens(micro_batch, host);
    dump_->AddSelections(micro_batch, pass);
  }
  // Tensor ranks have the same logits: one of them counts.
  if (replay_ == nullptr) return;
  if (groups_.tensor().rank() == 0) {
    status_.Update(replay_->CountFlips(pass, share_.MicroBatchInStep(micro_batch), &flips_));
  }
  // Of experts they have chosen for different tokens, or for the same, which are counted once.
  if (groups_.tensor().rank() == 0 || !job_.parallel.expert_tensor) {
    status_.Update(replay_->CountExpertFlips(pass, &expert_flips_));
  }
}

absl::Status StepDebug::AfterBackward() {
  FATHOM_RETURN_IF_ERROR(status_);
  return dump_.has_value() ? dump_->AddGradients(parameters_) : absl::OkStatus();
}

absl::Status StepDebug::SumFlips(SelectionReplay::Flips* flips) {
  int64_t counts[] = {flips->tokens, flips->replayed};
  Communicator& world = groups_.world();
  FATHOM_RETURN_IF_ERROR(
      world.AllReduce(Tensor(counts, DType::kInt64, {2}), ReduceOp::kSum, stream_).Wait(stream_));
  FATHOM_RETURN_IF_ERROR(
      world.AllReduce(Tensor(&flips->margin, DType::kFloat64, {1}), ReduceOp::kMax, stream_)
          .Wait(stream_));
  flips->tokens = counts[0];
  flips->replayed = counts[1];
  return absl::OkStatus();
}

absl::Status StepDebug::EndStep(const std::string& record) {
  if (replay_ != nullptr) {
    FATHOM_RETURN_IF_ERROR(SumFlips(&flips_));
    FATHOM_RETURN_IF_ERROR(SumFlips(&expert_flips_));
    const auto report = [&](const char* what, const SelectionReplay::Flips& flips) {
      if (flips.replayed == 0) return;
      log_(absl::StrFormat(
          "step %d replayed the selection of %s: of %d %s the model itself would not have selected "
          "%d, the worst by a margin of %.3g",
          step_, job_.debug.selection_file, flips.replayed, what, flips.tokens, flips.margin));
    };
    report("tokens", flips_);
    report("choices of experts", expert_flips_);
  }
  if (!dump_.has_value()) return absl::OkStatus();
  FATHOM_RETURN_IF_ERROR(dump_->Finish(parameters_, record));
  dump_.reset();
  log_(absl::StrCat("step ", step_, " is dumped in ", dump_directory_));
  return absl::OkStatus();
}

}  // namespace fathom
