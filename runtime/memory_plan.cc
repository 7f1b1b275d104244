#include "runtime/memory_plan.h"

#include "core/status.h"
#include "runtime/language_model.h"
#include "runtime/optimizer/optimizer.h"

namespace fathom {
namespace {

void RunMicroBatch(const Job& job, LanguageModel& model, bool training, Routing routing) {
  ArenaScope scope(model.arena());
  const HostBatch host =
      HostBatch::WholeSequences(job.train.micro_batch, job.train.sequence_length);
  const MicroBatch batch = Upload(host, model.stream(), model.arena());
  Pass pass = model.stage().NewPass(model.stream(), model.arena(), batch);
  pass.training = training;
  pass.routing = routing;
  pass.auxiliary_weight = training ? job.model.routing_coefficient : 0;
  const Tensor losses = model.arena().New(StatisticsDType(model.dtype()), {batch.rows()});
  model.stage().Forward(pass, batch);
  model.stage().Loss(pass, batch, /*loss_weight=*/1, losses);
  if (training) model.stage().Backward(pass, batch);
}

}  // namespace

absl::StatusOr<MemoryPlan> PlanMemory(const Job& job) {
  const std::unique_ptr<Device> device = NewDryDevice();
  FATHOM_ASSIGN_OR_RETURN(
      const std::unique_ptr<LanguageModel> model,
      LanguageModel::Create(job.model, ComputeDType(job.train.precision), job.train.sequence_length,
                            *device, /*with_gradients=*/true));
  Stream& stream = model->stream();
  FATHOM_ASSIGN_OR_RETURN(const std::unique_ptr<Optimizer> optimizer,
                          Optimizer::Create(job.optimizer, model->parameters(), *device, stream));

  MemoryPlan plan;
  stream.ledger().Clear();
  RunMicroBatch(job, *model, /*training=*/true, Routing::kTopK);
  plan.micro_batch = stream.ledger().total();
  RunMicroBatch(job, *model, /*training=*/false, Routing::kCausal);
  // The trainer keeps the losses outside the arena.
  FATHOM_ASSIGN_OR_RETURN(const Buffer losses, Buffer::Allocate(*device, sizeof(double)));
  optimizer->Step(stream, model->arena(), /*learning_rate=*/0,
                  losses.View(0, DType::kFloat64, {1}));
  plan.weights = model->parameters().weight_bytes();
  plan.gradients = model->parameters().gradient_bytes();
  plan.optimizer = optimizer->bytes();
  plan.activations = model->arena().peak_bytes();
  return plan;
}

}  // namespace fathom
