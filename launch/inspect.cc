#include <cstdio>
#include <string>

#include "core/accounting.h"
#include "core/file.h"
#include "core/job.h"
#include "core/status.h"
#include "launch/arguments.h"
#include "launch/commands.h"
#include "launch/inspect_checkpoint.h"
#include "nlohmann/json.hpp"
#include "runtime/memory_plan.h"
#include "runtime/pipeline_report.h"
#include "runtime/training_model.h"

namespace fathom {
namespace {

constexpr char kHelp[] =
    R"(usage: fathom inspect JOB [--set FIELD=VALUE]... [--json]
       fathom inspect CHECKPOINT [--verify] [--json]

Prints a job's layer plan, layers, parameters, FLOPs per token and memory per rank, without
running it; or what a checkpoint (RUN/step_NNNNNNNN, or a run, for its newest one) holds.
  --set FIELD=VALUE  overrides a field of the job, e.g. --set train.micro_batch=2
  --verify           reads the whole checkpoint and checks it against its checksums: exit status 1
                     and a line for each damage when it is not as it was written
  --json             one JSON object

example: fathom inspect launch/jobs/936m_xmod_a3k16.txtpb
         fathom inspect runs/quickstart --verify
)";

const char* GateName(Gate gate) {
  switch (gate) {
    case Gate::kXMod:
      return "XMOD";
    case Gate::kMod:
      return "MOD";
    case Gate::kNone:
      return "NONE";
  }
  return "";
}

const char* ScoringName(Scoring scoring) {
  return scoring == Scoring::kSoftmax ? "SOFTMAX" : "SIGMOID";
}

nlohmann::ordered_json ModelJson(const Job& job) {
  const ModelConfig& model = job.model;
  return {{"d", model.d},
          {"heads", model.heads},
          {"kv_heads", model.kv_heads},
          {"head_dim", model.head_dim},
          {"ffn", model.ffn},
          {"vocabulary", model.vocabulary},
          {"theta", model.theta},
          {"eps", model.eps},
          {"experts", model.experts},
          {"routed", model.routed},
          {"shared", model.shared},
          {"expert_ffn", model.expert_ffn},
          {"scoring", ScoringName(model.scoring)},
          {"gate", GateName(model.gate)},
          {"tau", model.tau},
          {"increment", model.increment},
          {"alignment", model.alignment == Alignment::kRaw ? "RAW" : "BIASED"},
          {"reset_every", model.reset_every},
          {"routing_coefficient", model.routing_coefficient},
          {"balance_coefficient", model.balance_coefficient},
          {"expert_bias_rate", model.expert_bias_rate},
          {"document_mask", job.data.document_mask}};
}

nlohmann::ordered_json ParallelJson(const ParallelConfig& parallel) {
  return {{"tensor", parallel.tensor},
          {"pipeline", parallel.pipeline},
          {"data", parallel.data},
          {"expert", parallel.expert},
          {"expert_tensor", parallel.expert_tensor},
          {"ranks", parallel.tensor * parallel.pipeline * parallel.data}};
}

struct Inspection {
  ParameterCounts parameters;
  FlopsPerToken flops;
  MemoryPlan memory;
  std::string pipeline;  // DescribePipeline
};

void PrintJson(const Job& job, const Inspection& inspection) {
  const MemoryPlan& memory = inspection.memory;
  const nlohmann::ordered_json json = {
      {"job", job.name},
      {"plan", ShortForm(job.model.plan.segments)},
      {"layers", job.model.plan.layers.size()},
      {"model", ModelJson(job)},
      {"parallel", ParallelJson(job.parallel)},
      {"parameters",
       {{"total", inspection.parameters.total}, {"active", inspection.parameters.active}}},
      {"flops_per_token",
       {{"paper_forward", inspection.flops.paper_forward},
        {"exact_forward", inspection.flops.exact_forward},
        {"exact_training", inspection.flops.exact_training}}},
      {"memory_per_rank",
       {{"weights", memory.weights},
        {"gradients", memory.gradients},
        {"optimizer", memory.optimizer},
        {"activations", memory.activations},
        {"total", memory.total()},
        {"snapshot", memory.snapshot}}}};
  std::printf("%s\n", json.dump(2).c_str());
}

// "1.23 GB", three digits.
std::string Bytes(int64_t bytes) {
  char text[32];
  const double value = static_cast<double>(bytes);
  if (value >= 1e9) {
    std::snprintf(text, sizeof(text), "%.2f GB", value / 1e9);
  } else {
    std::snprintf(text, sizeof(text), "%.2f MB", value / 1e6);
  }
  return text;
}

// Nothing for a plan without experts.
void PrintExperts(const ModelConfig& model) {
  if (!model.plan.has_experts()) return;
  std::printf("experts     %lld routed of %lld, and %lld shared, all of width %lld\n",
              static_cast<long long>(model.routed), static_cast<long long>(model.experts),
              static_cast<long long>(model.shared), static_cast<long long>(model.expert_ffn));
  std::printf("  %s scores, balance coefficient %g, bias rate %g\n",
              model.scoring == Scoring::kSoftmax ? "softmax" : "sigmoid", model.balance_coefficient,
              model.expert_bias_rate);
}

void PrintText(const Job& job, const Inspection& inspection) {
  const ParameterCounts& parameters = inspection.parameters;
  const MemoryPlan& memory = inspection.memory;
  std::printf("job         %s\n", job.name.c_str());
  std::printf("plan        %s\n", ShortForm(job.model.plan.segments).c_str());
  std::printf("layers      %zu, %.2f active\n", job.model.plan.layers.size(),
              job.model.plan.active_layers());
  PrintExperts(job.model);
  std::printf("parameters  %.4f B total, %.4f B active\n",
              static_cast<double>(parameters.total) / 1e9,
              static_cast<double>(parameters.active) / 1e9);
  std::printf("FLOPs per token at sequence length %lld%s\n",
              static_cast<long long>(job.train.sequence_length),
              job.data.document_mask ? ", as if each sequence were one document" : "");
  std::printf("  paper     %.4f G forward (full attention square, layers only)\n",
              inspection.flops.paper_forward / 1e9);
  std::printf("  exact     %.4f G forward, %.4f G training (causal, head and routers)\n",
              inspection.flops.exact_forward / 1e9, inspection.flops.exact_training / 1e9);
  if (job.parallel.ranks() > 1) {
    std::printf("ranks       %s\n", MeshOf(job.parallel).ToString().c_str());
  }
  if (!inspection.pipeline.empty()) std::printf("%s\n", inspection.pipeline.c_str());
  std::printf("memory per rank%s, micro-batch of %lld\n",
              job.parallel.pipeline > 1 ? " of the stage that holds the most" : "",
              static_cast<long long>(job.train.micro_batch));
  std::printf("  weights       %12s\n  gradients     %12s\n  optimizer     %12s\n",
              Bytes(memory.weights).c_str(), Bytes(memory.gradients).c_str(),
              Bytes(memory.optimizer).c_str());
  std::printf("  activations   %12s (kept for backward, and scratch)\n  total         %12s\n",
              Bytes(memory.activations).c_str(), Bytes(memory.total()).c_str());
  if (memory.snapshot == 0) return;
  std::printf("  besides       %12s (host memory, the copy that a save in the background writes)\n",
              Bytes(memory.snapshot).c_str());
}

absl::Status InspectJob(const Arguments& arguments) {
  FATHOM_ASSIGN_OR_RETURN(const Job job, ReadJob(arguments.words()[0], arguments.Values("set")));
  Inspection inspection{
      .parameters = CountParameters(job.model),
      .flops = CountFlopsPerToken(job.model, job.train.sequence_length),
      .memory = {},
      .pipeline = "",
  };
  FATHOM_ASSIGN_OR_RETURN(inspection.memory, PlanLargestMemory(job));
  FATHOM_ASSIGN_OR_RETURN(inspection.pipeline, DescribePipeline(job));
  if (arguments.Has("json")) {
    PrintJson(job, inspection);
  } else {
    PrintText(job, inspection);
  }
  return absl::OkStatus();
}

absl::Status Inspect(const Arguments& arguments) {
  if (arguments.words().size() != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("one job file or checkpoint is needed, ", arguments.words().size(),
                     " words were given; \"fathom inspect --help\" shows an example"));
  }
  const std::string& what = arguments.words()[0];
  const bool checkpoint = PosixFileSystem().IsDirectory(what);
  const char* flag = checkpoint ? "set" : "verify";
  if (arguments.Has(flag)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--", flag, " is given, but ", what, " is a ", checkpoint ? "directory" : "job",
        ": it goes with a ", checkpoint ? "job" : "checkpoint"));
  }
  if (!checkpoint) return InspectJob(arguments);
  return InspectCheckpoint(what, arguments.Has("json"), arguments.Has("verify"));
}

}  // namespace

int InspectMain(int argc, char** argv) {
  const absl::StatusOr<Arguments> arguments =
      Arguments::Parse(argc, argv, {"set"}, {"json", "verify"});
  if (!arguments.ok()) return Fail("inspect", arguments.status());
  if (arguments->help()) {
    std::fputs(kHelp, stdout);
    return kDone;
  }
  const absl::Status status = Inspect(*arguments);
  return status.ok() ? kDone : Fail("inspect", status);
}

}  // namespace fathom
