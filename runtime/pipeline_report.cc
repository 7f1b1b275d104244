#include "runtime/pipeline_report.h"

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "core/accounting.h"
#include "core/status.h"
#include "parallel/pipeline/schedule.h"
#include "parallel/pipeline/simulate.h"
#include "runtime/language_model.h"

namespace fathom {
namespace {

const char* NameOf(PipelineSchedule schedule) {
  switch (schedule) {
    case PipelineSchedule::kGPipe:
      return "GPipe";
    case PipelineSchedule::k1F1B:
      return "1F1B";
    case PipelineSchedule::kInterleaved:
      return "interleaved 1F1B";
  }
  return "";
}

PipelineCosts CostsOf(const Job& job, const std::vector<LayerRange>& parts) {
  const LayerFlops flops = CountLayerFlops(job.model, job.train.sequence_length);
  PipelineCosts costs;
  for (const LayerRange& part : parts) {
    double forward = 0;
    for (int64_t layer = part.begin; layer < part.end; ++layer) forward += flops.layers[layer];
    costs.forward.push_back(forward);
  }
  costs.forward.back() += flops.head;
  for (const double forward : costs.forward) costs.backward.push_back(2 * forward);
  return costs;
}

}  // namespace

absl::StatusOr<std::string> DescribePipeline(const Job& job) {
  const ParallelConfig& parallel = job.parallel;
  if (parallel.pipeline == 1) return "";
  const int64_t micro_batches = job.train.global_batch / (job.train.micro_batch * parallel.data);
  const PipelineShape shape{.schedule = parallel.schedule,
                            .stages = static_cast<int>(parallel.pipeline),
                            .micro_batches = static_cast<int>(micro_batches / parallel.lanes),
                            .chunks = static_cast<int>(parallel.virtual_stages)};
  const int64_t layers = job.model.plan.layers.size();
  FATHOM_ASSIGN_OR_RETURN(const std::vector<LayerRange> parts,
                          CutLayers(job.model, job.train.sequence_length, shape.parts()));
  FATHOM_ASSIGN_OR_RETURN(const std::vector<PipelineList> lists,
                          MakePipelineSchedule(shape, layers));
  FATHOM_ASSIGN_OR_RETURN(const PipelineTimeline timeline,
                          SimulatePipeline(shape, lists, CostsOf(job, parts)));
  std::vector<std::string> stages;
  for (int stage = 0; stage < shape.stages; ++stage) {
    std::vector<std::string> chunks;
    for (int chunk = 0; chunk < shape.chunks; ++chunk) {
      const LayerRange& part = parts[shape.PartOf(stage, chunk)];
      chunks.push_back(absl::StrCat(part.begin, "-", part.end - 1));
    }
    stages.push_back(absl::StrJoin(chunks, " and "));
  }
  return absl::StrFormat(
      "pipeline: stages of layers %s; %s with %d micro-batches leaves them idle %.1f%% of the time",
      absl::StrJoin(stages, ", "), NameOf(parallel.schedule), shape.micro_batches,
      100 * timeline.bubble_fraction);
}

}  // namespace fathom
