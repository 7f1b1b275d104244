#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <string>

#include "core/status.h"
#include "launch/arguments.h"
#include "launch/commands.h"
#include "launch/run_environment.h"
#include "launch/token_losses.h"
#include "nlohmann/json.hpp"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/open_weights.h"
#include "runtime/data/job_data.h"
#include "runtime/evaluation.h"
#include "runtime/run_state.h"

namespace fathom {
namespace {

constexpr char kHelp[] =
    R"(usage: fathom eval JOB --checkpoint DIR [--set FIELD=VALUE]... [--json] [--routing]
                   [--token-losses FILE]

Validation loss of a checkpoint, in nats per token, under top-k routing (as in training) and under
causal routing (as in generation), on the job's validation tokens.
  --checkpoint DIR   a checkpoint (RUN/step_NNNNNNNN), or a run, for its newest one
  --set FIELD=VALUE  overrides a field of the job, e.g. --set data.validation=my.tokens
  --json             one JSON object
  --routing          also the share of tokens that each layer saw, and of its choices that each
                     expert got, under causal routing
  --token-losses FILE
                     writes the loss of every token under causal routing as JSON lines: sequence,
                     position, label, loss

example: fathom eval launch/jobs/quickstart.txtpb --checkpoint runs/quickstart
         fathom eval launch/jobs/toy_xmod.txtpb --checkpoint runs/toy_xmod \
             --token-losses losses.jsonl
)";

struct Losses {
  EvaluationResult topk;
  EvaluationResult causal;
};

// The loss under causal routing; writes each token's to `path`, unless that is empty.
absl::StatusOr<EvaluationResult> EvaluateCausal(StepRunner& runner, const Sampler& sampler,
                                                EvaluationOptions options,
                                                const std::string& path) {
  options.routing = Routing::kCausal;
  if (path.empty()) return Evaluate(runner, sampler, options);
  FATHOM_ASSIGN_OR_RETURN(const auto writer, TokenLossWriter::Create(PosixFileSystem(), path));
  options.on_losses = [&](int64_t first, const HostBatch& host, const std::vector<double>& losses) {
    return writer->Write(first, host, losses);
  };
  FATHOM_ASSIGN_OR_RETURN(const EvaluationResult result, Evaluate(runner, sampler, options));
  FATHOM_RETURN_IF_ERROR(writer->Close());
  return result;
}

absl::StatusOr<Losses> EvaluateJob(const Job& job, const std::string& directory,
                                   const std::string& token_losses, StepRunner& runner) {
  FileSystem& files = PosixFileSystem();
  FATHOM_ASSIGN_OR_RETURN(const std::string found, FindCheckpoint(files, directory));
  FATHOM_ASSIGN_OR_RETURN(const Checkpoint checkpoint, OpenCheckpoint(files, found));
  LanguageModel& model = runner.model();
  FATHOM_RETURN_IF_ERROR(LoadWeights(*checkpoint.weights, ParameterNames(job.model),
                                     model.parameters(), model.stream()));

  FATHOM_ASSIGN_OR_RETURN(const JobData data, OpenValidationData(files, job, LogLine));
  if (data.validation == nullptr) {
    return absl::InvalidArgumentError(
        "data.validation is not set: name a token file with --set data.validation=FILE");
  }
  FATHOM_RETURN_IF_ERROR(CheckRecordedTokenizer(checkpoint.manifest->integers, found, data));
  const Sampler& sampler = *data.validation;
  const int64_t limit = job.train.validation_sequences;
  EvaluationOptions options{
      .routing = Routing::kTopK,
      .sequences = limit > 0 ? std::min(limit, sampler.count()) : sampler.count(),
      .batch = job.train.micro_batch};
  Losses losses;
  FATHOM_ASSIGN_OR_RETURN(losses.topk, Evaluate(runner, sampler, options));
  FATHOM_ASSIGN_OR_RETURN(losses.causal, EvaluateCausal(runner, sampler, options, token_losses));
  return losses;
}

void PrintJson(const Job& job, const Losses& losses, bool routing) {
  nlohmann::ordered_json json = {
      {"job", job.name},
      {"labels", losses.causal.labels},
      {"loss_topk", losses.topk.loss},
      {"loss_causal", losses.causal.loss},
      {"routed_share_topk", losses.topk.routed_share(job.model.plan)},
      {"routed_share_causal", losses.causal.routed_share(job.model.plan)}};
  if (routing) {
    json["layer_share_topk"] = losses.topk.layer_share;
    json["layer_share_causal"] = losses.causal.layer_share;
    if (job.model.plan.has_experts()) json["expert_rows_causal"] = losses.causal.expert_rows;
  }
  std::printf("%s\n", json.dump(2).c_str());
}

// How evenly the rows of a layer fall to its experts.
struct Load {
  double rows = 0;
  double violation = 0;  // the largest count over the mean, less 1
  double entropy = 1;    // of the shares, over that of equal ones
};

Load LoadOf(const std::vector<double>& rows) {
  Load load;
  double largest = 0, entropy = 0;
  for (const double count : rows) {
    load.rows += count;
    largest = std::max(largest, count);
  }
  if (load.rows == 0 || rows.size() == 1) return load;
  for (const double count : rows) {
    if (count > 0) entropy -= count / load.rows * std::log(count / load.rows);
  }
  load.violation = largest * static_cast<double>(rows.size()) / load.rows - 1;
  load.entropy = entropy / std::log(static_cast<double>(rows.size()));
  return load;
}

// A line for each layer with experts: how even its load is, then each expert's share in percent.
void PrintExperts(const Job& job, const EvaluationResult& result) {
  std::printf("\n%-8s %-8s %10s %10s   share of each expert, %%\n", "layer", "kind", "violation",
              "entropy");
  for (size_t layer = 0; layer < result.expert_rows.size(); ++layer) {
    const std::vector<double>& rows = result.expert_rows[layer];
    if (rows.empty()) continue;
    const Load load = LoadOf(rows);
    const std::string kind = ShortForm(job.model.plan.layers[layer].spec);
    std::printf("%-8zu %-8s %10.4f %10.4f  ", layer, kind.c_str(), load.violation, load.entropy);
    for (const double count : rows) {
      std::printf(" %.2f", load.rows == 0 ? 0 : 100 * count / load.rows);
    }
    std::printf("\n");
  }
}

void PrintText(const Job& job, const Losses& losses, bool routing) {
  std::printf("%lld labels\n", static_cast<long long>(losses.causal.labels));
  std::printf("top-k routing   loss %.6f, tokens routed %.2f%%\n", losses.topk.loss,
              100 * losses.topk.routed_share(job.model.plan));
  std::printf("causal routing  loss %.6f, tokens routed %.2f%%\n", losses.causal.loss,
              100 * losses.causal.routed_share(job.model.plan));
  if (!routing) return;
  std::printf("%-8s %-8s %10s %10s\n", "layer", "kind", "top-k", "causal");
  for (size_t layer = 0; layer < losses.causal.layer_share.size(); ++layer) {
    const std::string kind = ShortForm(job.model.plan.layers[layer].spec);
    std::printf("%-8zu %-8s %9.2f%% %9.2f%%\n", layer, kind.c_str(),
                100 * losses.topk.layer_share[layer], 100 * losses.causal.layer_share[layer]);
  }
  if (job.model.plan.has_experts()) PrintExperts(job, losses.causal);
}

absl::Status Eval(const Arguments& arguments) {
  if (arguments.words().size() != 1 || !arguments.Has("checkpoint")) {
    return absl::InvalidArgumentError(
        "a job file and --checkpoint DIR are needed; \"fathom eval --help\" shows an example");
  }
  FATHOM_RETURN_IF_ERROR(CheckProcessor());
  FATHOM_ASSIGN_OR_RETURN(const Job job, ReadJob(arguments.words()[0], arguments.Values("set")));
  const std::unique_ptr<Device> device = MakeDevice(job);
  // One process evaluates a checkpoint of any layout.
  const std::unique_ptr<RankGroups> groups = RankGroups::Alone();
  FATHOM_ASSIGN_OR_RETURN(const std::unique_ptr<LanguageModel> model,
                          LanguageModel::Create(job.model,
                                                {.dtype = ComputeDType(job.train.precision),
                                                 .length = job.train.sequence_length},
                                                *groups, *device));
  FATHOM_ASSIGN_OR_RETURN(const std::unique_ptr<StepRunner> runner,
                          StepRunner::Create({}, *model, *groups));
  FATHOM_ASSIGN_OR_RETURN(
      const Losses losses,
      EvaluateJob(job, arguments.Value("checkpoint"), arguments.Value("token-losses"), *runner));
  if (arguments.Has("json")) {
    PrintJson(job, losses, arguments.Has("routing"));
  } else {
    PrintText(job, losses, arguments.Has("routing"));
  }
  return absl::OkStatus();
}

}  // namespace

int EvalMain(int argc, char** argv) {
  const absl::StatusOr<Arguments> arguments =
      Arguments::Parse(argc, argv, {"set", "checkpoint", "token-losses"}, {"json", "routing"});
  if (!arguments.ok()) return Fail("eval", arguments.status());
  if (arguments->help()) {
    std::fputs(kHelp, stdout);
    return kDone;
  }
  const absl::Status status = Eval(*arguments);
  return status.ok() ? kDone : Fail("eval", status);
}

}  // namespace fathom
