#include "runtime/step_runner.h"

#include <algorithm>
#include <utility>

#include "core/status.h"
#include "kernels/elementwise.h"
#include "parallel/pipeline/schedule.h"
#include "runtime/model/parameters.h"

namespace fathom {

struct StepRunner::Step {
  const std::vector<HostBatch>& micro_batches;
  double label_weight;
  const Tensor& totals;
  const PassHooks& hooks;
};

StepRunner::StepRunner(const Options& options, LanguageModel& model, RankGroups& groups)
    : options_(options), model_(model), groups_(groups) {}

absl::StatusOr<std::unique_ptr<StepRunner>> StepRunner::Create(const Options& options,
                                                               LanguageModel& model,
                                                               RankGroups& groups) {
  std::unique_ptr<StepRunner> runner(new StepRunner(options, model, groups));
  const PipelineShape shape{
      .schedule = options.schedule,
      .stages = groups.sizes().pipeline,
      .micro_batches = static_cast<int>(options.micro_batches / options.lanes),
      .chunks = static_cast<int>(model.stages().size())};
  const int64_t layers = model.config().plan.layers.size();
  FATHOM_ASSIGN_OR_RETURN(const std::vector<PipelineList> lists,
                          MakePipelineSchedule(shape, layers));
  runner->list_ = lists[groups.coordinates().pipeline];
  return runner;
}

absl::Status StepRunner::Train(const std::vector<HostBatch>& micro_batches, double label_weight,
                               const Tensor& totals, const PassHooks& hooks) {
  FATHOM_CHECK_EQ(static_cast<int64_t>(micro_batches.size()), options_.micro_batches);
  const Step step{micro_batches, label_weight, totals, hooks};
  for (const PipelineOperation& operation : list_) {
    FATHOM_RETURN_IF_ERROR(Execute(operation, step));
    FATHOM_RETURN_IF_ERROR(model_.status());
  }
  return ReleaseSent();
}

absl::Status StepRunner::Execute(const PipelineOperation& operation, const Step& step) {
  switch (operation.action) {
    case PipelineAction::kReceiveActivation:
      return Begin(operation, step);
    case PipelineAction::kForward:
      return Forward(operation, step);
    case PipelineAction::kSendActivation:
      return SendActivations(operation);
    case PipelineAction::kReceiveGradient:
      return ReceiveGradients(operation);
    case PipelineAction::kBackward:
      return Backward(operation, step);
    case PipelineAction::kSendGradient:
      return SendGradients(operation);
  }
  return absl::OkStatus();
}

StepRunner::Group& StepRunner::GroupOf(const PipelineOperation& operation) {
  return in_flight_[{operation.chunk, operation.micro_batch}];
}

size_t StepRunner::TakeArena() {
  if (free_arenas_.empty()) return arenas_++;
  return free_arenas_.extract(free_arenas_.begin()).value();
}

std::vector<Tensor> StepRunner::Activations(const Pass& pass, bool with_counts) const {
  if (with_counts) return {pass.residual, pass.counts};
  return {pass.residual};
}

bool StepRunner::NextNeedsCounts(const Stage& stage) const {
  return !model_.config().plan.layers[stage.layers().end - 1].resets_counts;
}

absl::Status StepRunner::Wait(std::vector<Completion>& completions, Stream& stream) {
  for (Completion& completion : completions) FATHOM_RETURN_IF_ERROR(completion.Wait(stream));
  completions.clear();
  return absl::OkStatus();
}

absl::Status StepRunner::Begin(const PipelineOperation& operation, const Step& step) {
  FATHOM_RETURN_IF_ERROR(ReleaseSent());
  const Stage& stage = *model_.stages()[operation.chunk];
  Group& group = GroupOf(operation);
  for (int lane = 0; lane < options_.lanes; ++lane) {
    auto work = std::make_unique<InFlight>();
    work->arena = TakeArena();
    Arena& arena = model_.arena(work->arena);
    work->start = arena.mark();
    work->micro_batch = operation.micro_batch * options_.lanes + lane;
    work->host = &step.micro_batches[work->micro_batch];
    work->batch = Upload(*work->host, model_.stream(), arena);
    work->pass.emplace(stage.NewPass(model_.stream(), arena, work->batch));
    work->pass->training = true;
    work->pass->auxiliary_weight = options_.auxiliary_weight;
    work->pass->balance_weight = options_.balance_weight;
    if (operation.action == PipelineAction::kReceiveActivation) {
      for (const Tensor& tensor : Activations(*work->pass, stage.NeedsCounts())) {
        work->receiving.push_back(
            groups_.pipeline().Receive(tensor, operation.peer, model_.stream()));
      }
    }
    group.push_back(std::move(work));
  }
  return absl::OkStatus();
}

absl::Status StepRunner::Forward(const PipelineOperation& operation, const Step& step) {
  Stage& stage = *model_.stages()[operation.chunk];
  // Nothing was received where the part before stands on this rank too, or where there is none.
  if (GroupOf(operation).empty()) FATHOM_RETURN_IF_ERROR(Begin(operation, step));
  Group& group = GroupOf(operation);
  for (const auto& work : group) {
    FATHOM_RETURN_IF_ERROR(Wait(work->receiving, model_.stream()));
  }
  RunLanes(absl::StrCat("forward ", operation.micro_batch),
           [&](int lane) { ForwardLane(step, stage, *group[lane]); });
  return absl::OkStatus();
}

void StepRunner::RunLanes(const std::string& name, const std::function<void(int lane)>& body) {
  Stream& stream = model_.stream();
  Timeline* timeline = stream.timeline();
  if (timeline == nullptr) {
    model_.lanes().Run(options_.lanes, body);
    return;
  }
  const int track = stream.track();
  model_.lanes().Run(options_.lanes, [&](int lane) {
    const int lane_track = timeline->Track(groups_.rank(), absl::StrCat("lane ", lane));
    stream.RecordOn(timeline, lane_track);
    const auto start = Timeline::Clock::now();
    body(lane);
    timeline->AddSpan(lane_track, name, start, Timeline::Clock::now());
  });
  stream.RecordOn(timeline, track);
}

void StepRunner::ForwardLane(const Step& step, Stage& stage, InFlight& work) {
  Stream& stream = model_.stream();
  Pass& pass = *work.pass;
  if (step.hooks.before_forward) step.hooks.before_forward(work.micro_batch, pass);
  stage.Forward(pass, work.batch);
  if (step.hooks.after_forward) step.hooks.after_forward(work.micro_batch, *work.host, pass);
  // What all tensor ranks have is counted once.
  const bool counts = groups_.tensor().rank() == 0;
  const auto total = [&](StepTotal which) { return step.totals.Rows(which, which + 1); };
  if (counts) {
    Launch(stream, Sum{.x = pass.auxiliary_loss, .sum = total(kAuxiliaryLossTotal)});
  }
  Launch(stream, Sum{.x = pass.auxiliary_part, .sum = total(kAuxiliaryLossTotal)});
  if (!stage.has_head()) return;
  const Tensor losses =
      model_.arena(work.arena).New(StatisticsDType(model_.dtype()), {work.batch.rows()});
  stage.Loss(pass, work.batch, step.label_weight, losses);
  if (counts) {
    Launch(stream, Sum{.x = losses, .factor = step.label_weight, .sum = total(kLossTotal)});
  }
}

absl::Status StepRunner::SendActivations(const PipelineOperation& operation) {
  const bool counts = NextNeedsCounts(*model_.stages()[operation.chunk]);
  for (const auto& work : GroupOf(operation)) {
    for (const Tensor& tensor : Activations(*work->pass, counts)) {
      work->sending.push_back(groups_.pipeline().Send(tensor, operation.peer, model_.stream()));
    }
  }
  return absl::OkStatus();
}

absl::Status StepRunner::ReceiveGradients(const PipelineOperation& operation) {
  for (const auto& work : GroupOf(operation)) {
    Pass& pass = *work->pass;
    pass.d_residual = model_.arena(work->arena).New(pass.residual.dtype(), pass.residual.shape());
    work->receiving.push_back(
        groups_.pipeline().Receive(pass.d_residual, operation.peer, model_.stream()));
  }
  return absl::OkStatus();
}

absl::Status StepRunner::Backward(const PipelineOperation& operation, const Step& step) {
  const Stage& stage = *model_.stages()[operation.chunk];
  Group& group = GroupOf(operation);
  for (const auto& work : group) {
    FATHOM_RETURN_IF_ERROR(Wait(work->sending, model_.stream()));
    FATHOM_RETURN_IF_ERROR(Wait(work->receiving, model_.stream()));
  }
  const int64_t last = options_.micro_batches - 1;
  const auto backward_lane = [&](int lane) {
    InFlight& work = *group[lane];
    const bool completes = work.micro_batch == last;
    stage.Backward(*work.pass, work.batch, completes ? step.hooks.gradients_done : nullptr);
  };
  RunLanes(absl::StrCat("backward ", operation.micro_batch), backward_lane);
  if (stage.has_embedding()) {
    for (const auto& work : group) Release(*work);
    in_flight_.erase({operation.chunk, operation.micro_batch});
  }
  return absl::OkStatus();
}

absl::Status StepRunner::SendGradients(const PipelineOperation& operation) {
  for (const auto& work : GroupOf(operation)) {
    work->sending.push_back(
        groups_.pipeline().Send(work->pass->d_residual, operation.peer, model_.stream()));
  }
  sent_.push_back(std::move(GroupOf(operation)));
  in_flight_.erase({operation.chunk, operation.micro_batch});
  return absl::OkStatus();
}

absl::Status StepRunner::ReleaseSent() {
  for (Group& group : sent_) {
    for (const auto& work : group) {
      FATHOM_RETURN_IF_ERROR(Wait(work->sending, model_.stream()));
      Release(*work);
    }
  }
  sent_.clear();
  return absl::OkStatus();
}

void StepRunner::Release(InFlight& work) {
  work.pass.reset();
  model_.arena(work.arena).Release(work.start);
  free_arenas_.insert(work.arena);
}

StepRunner::RowCounts StepRunner::NoRows() const {
  const ModelConfig& config = model_.config();
  const size_t layers = config.plan.layers.size();
  const size_t experts = config.plan.has_experts() ? config.experts : 0;
  return {.layer_rows = std::vector<int64_t>(layers),
          .expert_rows = std::vector<double>(layers * experts)};
}

absl::Status StepRunner::Evaluate(const HostBatch& host, Routing routing,
                                  std::vector<double>* losses, RowCounts* counts) {
  Stream& stream = model_.stream();
  Arena& arena = model_.arena();
  const int stages = groups_.sizes().pipeline;
  const int at = groups_.coordinates().pipeline;
  losses->clear();
  for (const std::unique_ptr<Stage>& stage : model_.stages()) {
    ArenaScope scope(arena);
    const MicroBatch batch = Upload(host, stream, arena);
    Pass pass = stage->NewPass(stream, arena, batch);
    pass.routing = routing;
    const int64_t layers = counts->layer_rows.size();
    const DType stat = StatisticsDType(model_.dtype());
    if (!counts->expert_rows.empty()) {
      pass.expert_rows = arena.New(stat, {layers, model_.config().experts});
      Launch(stream, Fill{.value = 0, .y = pass.expert_rows});
    }
    std::vector<Completion> transfers;
    if (!stage->has_embedding()) {
      for (const Tensor& tensor : Activations(pass, stage->NeedsCounts())) {
        transfers.push_back(groups_.pipeline().Receive(tensor, (at + stages - 1) % stages, stream));
      }
    }
    FATHOM_RETURN_IF_ERROR(Wait(transfers, stream));
    stage->Forward(pass, batch);
    std::vector<int32_t> selected(layers);
    stream.CopyToHost(pass.selected, selected.data());
    std::vector<char> expert_rows(pass.expert_rows.absent() ? 0 : pass.expert_rows.bytes());
    if (!expert_rows.empty()) stream.CopyToHost(pass.expert_rows, expert_rows.data());
    if (stage->has_head()) {
      const Tensor row_losses = arena.New(stat, {batch.rows()});
      stage->Loss(pass, batch, /*loss_weight=*/0, row_losses);
      std::vector<char> raw(row_losses.bytes());
      stream.CopyToHost(row_losses, raw.data());
      FATHOM_RETURN_IF_ERROR(stream.Synchronize());
      losses->resize(row_losses.elements());
      ConvertElements(raw.data(), stat, losses->data(), DType::kFloat64, losses->size());
    } else {
      for (const Tensor& tensor : Activations(pass, NextNeedsCounts(*stage))) {
        transfers.push_back(groups_.pipeline().Send(tensor, (at + 1) % stages, stream));
      }
      FATHOM_RETURN_IF_ERROR(Wait(transfers, stream));
      FATHOM_RETURN_IF_ERROR(stream.Synchronize());
    }
    FATHOM_RETURN_IF_ERROR(model_.status());
    for (int64_t layer = stage->layers().begin; layer < stage->layers().end; ++layer) {
      counts->layer_rows[layer] += selected[layer];
    }
    std::vector<double> of_experts(counts->expert_rows.size());
    ConvertElements(expert_rows.data(), stat, of_experts.data(), DType::kFloat64,
                    of_experts.size());
    for (size_t i = 0; i < of_experts.size(); ++i) counts->expert_rows[i] += of_experts[i];
  }
  return absl::OkStatus();
}

}  // namespace fathom
