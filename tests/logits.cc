// The logits of a job's model on given weights and tokens, for comparison with other programs
// (tests/reference/compare_transformers.py). One process, causal routing.
//
// usage: logits JOB WEIGHTS TOKENS OUTPUT
//
//   WEIGHTS  what train.init_from takes: a safetensors file, a checkpoint, a directory with
//            model.safetensors
//   TOKENS   safetensors with input_ids [B, L] int64
//   OUTPUT   safetensors with logits [B, L, V], float64 in FP64 and else float32

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>

#include "core/cpu_device.h"
#include "core/job.h"
#include "core/status.h"
#include "runtime/checkpoint/open_weights.h"
#include "runtime/checkpoint/safetensors.h"
#include "runtime/language_model.h"
#include "runtime/run_state.h"

namespace fathom {
namespace {

// Each sequence is one document; without labels.
absl::StatusOr<HostBatch> ReadTokens(const std::string& path, int64_t vocabulary) {
  FATHOM_ASSIGN_OR_RETURN(const auto file, SafetensorsFile::Open(PosixFileSystem(), path));
  const NamedArray* ids = file->Find("input_ids");
  if (ids == nullptr || ids->dtype != DType::kInt64 || ids->shape.rank() != 2) {
    return absl::InvalidArgumentError(absl::StrCat(path, " has no input_ids [B, L] of int64"));
  }
  HostBatch batch = HostBatch::WholeSequences(ids->shape[0], ids->shape[1]);
  for (size_t i = 0; i < batch.tokens.size(); ++i) {
    int64_t token;
    std::memcpy(&token, static_cast<const char*>(ids->data) + i * sizeof(token), sizeof(token));
    if (token < 0 || token >= vocabulary) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": token ", token, " is not one of a vocabulary of ", vocabulary));
    }
    batch.tokens[i] = static_cast<int32_t>(token);
  }
  return batch;
}

absl::Status WriteLogits(LanguageModel& model, const HostBatch& host, const std::string& path) {
  Arena& arena = model.arena();
  ArenaScope scope(arena);
  const MicroBatch batch = Upload(host, model.stream(), arena);
  Pass pass = model.stage().NewPass(model.stream(), arena, batch);
  pass.routing = Routing::kCausal;
  const int64_t vocabulary = model.config().vocabulary;
  const Tensor logits = arena.New(StatisticsDType(model.dtype()), {batch.rows(), vocabulary});
  model.stage().Forward(pass, batch);
  model.stage().head().Logits(pass, logits);
  FATHOM_RETURN_IF_ERROR(model.stream().Synchronize());
  const NamedArray array{.name = "logits",
                         .dtype = logits.dtype(),
                         .shape = {host.sequences, host.length, vocabulary},
                         .data = logits.raw()};
  return WriteSafetensorsFile(PosixFileSystem(), path, {array}, {});
}

absl::Status Run(const std::string& job_path, const std::string& weights_path,
                 const std::string& tokens_path, const std::string& output) {
  FATHOM_ASSIGN_OR_RETURN(const Job job, ReadJob(job_path, {}));
  FATHOM_ASSIGN_OR_RETURN(const HostBatch host, ReadTokens(tokens_path, job.model.vocabulary));
  CpuDevice device(std::max(1, job.device.threads));
  const std::unique_ptr<RankGroups> groups = RankGroups::Alone();
  FATHOM_ASSIGN_OR_RETURN(
      const std::unique_ptr<LanguageModel> model,
      LanguageModel::Create(job.model,
                            {.dtype = ComputeDType(job.train.precision), .length = host.length},
                            *groups, device));
  FATHOM_ASSIGN_OR_RETURN(const auto weights, OpenWeights(PosixFileSystem(), weights_path));
  FATHOM_RETURN_IF_ERROR(
      LoadWeights(*weights, ParameterNames(job.model), model->parameters(), model->stream()));
  return WriteLogits(*model, host, output);
}

}  // namespace
}  // namespace fathom

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: logits JOB WEIGHTS TOKENS OUTPUT\n");
    return 2;
  }
  const absl::Status status = fathom::Run(argv[1], argv[2], argv[3], argv[4]);
  if (status.ok()) return 0;
  std::fprintf(stderr, "logits: %s\n", std::string(status.message()).c_str());
  return 1;
}
