#include "launch/job_table.h"

#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/plan.h"

namespace fathom {
namespace {

// ---- Layer plans.

using Plan = std::vector<PlanSegment>;

PlanSegment Dense(int64_t repeat = 1) { return {.repeat = repeat, .layer = {}, .group = {}}; }

// With a mixture of experts for its FFN.
PlanSegment Moe(int64_t repeat = 1) {
  return {.repeat = repeat, .layer = {.experts = true}, .group = {}};
}

PlanSegment Sparse(int64_t repeat, int64_t sparsity) {
  return {.repeat = repeat, .layer = {LayerKind::kSparse, sparsity}, .group = {}};
}

PlanSegment SparseMoe(int64_t repeat, int64_t sparsity) {
  return {.repeat = repeat, .layer = {LayerKind::kSparse, sparsity, true}, .group = {}};
}

// `repeat` intervals of `count` sparse layers and the dense layer that closes them.
PlanSegment Intervals(int64_t repeat, int64_t count, int64_t sparsity) {
  return {.repeat = repeat, .layer = {}, .group = {Sparse(count, sparsity), Dense()}};
}

Plan A1K16() { return {Dense(4), Intervals(12, 16, 16)}; }

// The segments in text format, each as one line's "plan { ... }".
std::string SegmentText(const PlanSegment& segment) {
  std::string text = "plan { ";
  if (segment.repeat != 1) absl::StrAppend(&text, "repeat: ", segment.repeat, " ");
  if (!segment.group.empty()) {
    text += "group { ";
    for (const PlanSegment& inner : segment.group) absl::StrAppend(&text, SegmentText(inner), " ");
    text += "}";
  } else if (segment.layer.kind == LayerKind::kSparse) {
    absl::StrAppend(&text, "sparse { sparsity: ", segment.layer.sparsity,
                    segment.layer.experts ? " experts: true }" : " }");
  } else {
    text += segment.layer.experts ? "moe {}" : "dense {}";
  }
  return text + " }";
}

// ---- Sizes and models.

struct Size {
  std::string name;
  int64_t d, heads, kv_heads, head_dim, ffn, vocabulary;
  int64_t expert_ffn;
};

const Size kSizes[] = {
    {"165m", 512, 16, 8, 64, 1536, 50257, 192},    {"298m", 768, 16, 8, 64, 2304, 50257, 288},
    {"556m", 1024, 16, 8, 128, 3072, 50257, 384},  {"936m", 1536, 16, 8, 128, 3840, 50257, 480},
    {"1650m", 2048, 16, 8, 128, 6144, 50257, 768},
};
const Size kBenchSize = {"bench", 512, 16, 8, 64, 1536, 8192, 192};
const Size kToySize = {"toy", 64, 16, 8, 8, 192, 257, 24};
const Size kQuickstartSize = {"quickstart", 128, 4, 2, 32, 384, 257, 0};

struct Model {
  std::string name;
  std::string title;
  Plan plan;
  std::string settings = "";  // further lines of the job's `model`
  int64_t experts = 0;        // in each mixture, with 2 shared ones; 0: the plan has none
  int64_t routed = 0;
};

Model MoE(int64_t experts) {
  return {.name = absl::StrCat("moe_8_", experts),
          .title = absl::StrCat("MoE 8:", experts),
          .plan = {Moe(28)},
          .experts = experts,
          .routed = 6};
}

std::vector<Model> NamedModels() {
  return {
      {"dense", "Dense", {Dense(28)}},
      {"mod", "MoD", {Dense(), Intervals(24, 1, 8)}, "  gate: MOD\n"},
      {"xmod_a4k8", "X-MoD A4K8", {Dense(4), Intervals(1, 24, 8), Intervals(4, 32, 8)}},
      {"xmod_a3k16", "X-MoD A3K16", {Dense(4), Intervals(6, 48, 16)}},
      {"xmod_a1k16", "X-MoD A1K16", A1K16()},
      MoE(64),
      MoE(128),
  };
}

// X-MoD A1K16, each without one of its parts.
std::vector<Model> Ablations() {
  return {
      {"xmod_a1k16_no_anchor",
       "X-MoD A1K16 without anchors; counts start anew every 16 layers",
       {Dense(4), Sparse(384, 16)},
       "  reset_every: 16\n"},
      {"xmod_a1k16_no_gate", "X-MoD A1K16 with the gate of MoD", A1K16(), "  gate: MOD\n"},
      {"xmod_a1k16_no_bias", "X-MoD A1K16 without the token-choice bias", A1K16(), "  tau: 0\n"},
      {"xmod_a1k16_no_prefix",
       "X-MoD A1K16 without the dense layers at the start",
       {Intervals(14, 16, 16)}},
  };
}

std::vector<Model> DeepModels() {
  std::vector<Model> models = {{"deep_dense", "Deep Dense", {Dense(52)}}};
  for (const int64_t k : {4, 8, 12, 16}) {
    models.push_back({absl::StrCat("deep_a1k", k),
                      absl::StrCat("Deep X-MoD A1K", k),
                      {Dense(4), Intervals(24, k, k)}});
  }
  return models;
}

std::vector<Model> Toys() {
  return {
      {"dense", "Dense", {Dense(4)}},
      {"mod", "MoD", {Dense(), Intervals(2, 1, 4)}, "  gate: MOD\n"},
      {"xmod", "X-MoD", {Dense(2), Intervals(2, 2, 4)}},
      {"298", "X-MoD with the 298 layers of A3K16", {Dense(4), Intervals(6, 48, 16)}},
      {"412", "X-MoD with the 412 layers of Deep A1K16", {Dense(4), Intervals(24, 16, 16)}},
      {.name = "moe", .title = "MoE", .plan = {Moe(4)}, .experts = 8, .routed = 2},
      {.name = "moe_xmod",
       .title = "Every kind of layer, sparse ones with experts among them",
       .plan = {Dense(),
                {.repeat = 2, .layer = {}, .group = {Sparse(1, 4), SparseMoe(1, 4), Moe()}}},
       .experts = 8,
       .routed = 2},
  };
}

Model Quickstart() {
  return {"", "A small X-MoD", {Dense(2), Intervals(2, 4, 4)}, "  routing_coefficient: 1e-2\n"};
}

// ---- What surrounds the model in a job.

const char kSizeAbout[] =
    "# The token files are placeholders: write them with `fathom prepare` and a GPT-2 tokenizer, "
    "or\n"
    "# name others with --set data.train=... --set data.validation=...\n";
const char kSizeRest[] = R"(
data {
  train: "data/fineweb.train"
  validation: "data/fineweb.validation"
  tokenizer: "data/gpt2"
}

train {
  steps: 20000
  sequence_length: 32768
  micro_batch: 1
  global_batch: 80
  validate_every: 500
  validation_sequences: 32
  watchdog_seconds: 600
}

optimizer { kind: MUON learning_rate: 3.2e-3 weight_decay: 0.1 clip: 1 }
schedule { kind: COSINE warmup_fraction: 0.01 final_fraction: 0.1 }
checkpoint { every: 500 keep: 3 keep_every: 5000 }
)";

// Beside kSizeRest, for clusters: every node's GPUs share each matrix, nodes are replicas.
const char kClusterAbout[] =
    "# For 8 nodes of 8 GPUs with 80 GB: launch/mpirun.sh --hostfile HOSTS, or sbatch "
    "launch/slurm.sh.\n#\n";
const char kClusterRest[] = R"(
parallel {
  tensor: 8
  sequence: true
  data: 8
  zero: 1
  lanes: 2
}
)";
// The node's GPUs share the experts as well.
const char kMoeClusterRest[] = R"(
parallel {
  tensor: 8
  sequence: true
  data: 8
  expert: 8
  zero: 1
  lanes: 2
}
)";

const char kBenchAbout[] = "# The benchmark of machines without a GPU; any text does.\n";
const char kBenchRest[] = R"(
data {
  text: "text/toy.txt"
  validation_fraction: 0.2
}

train {
  steps: 10
  sequence_length: 8192
  micro_batch: 1
  global_batch: 80
  watchdog_seconds: 600
}
)";

const char kToyAbout[] = "# Trains in seconds, to see that the program works.\n";
const char kToyRest[] = R"(
data {
  text: "text/toy.txt"
  validation_fraction: 0.05
}

train {
  steps: 20
  sequence_length: 128
  micro_batch: 1
  global_batch: 8
  validate_every: 10
  validation_sequences: 8
}
)";

const char kQuickstartAbout[] =
    "# What `fathom train` runs without a job file. The first text that exists is used; the first "
    "one\n"
    "# is a dictionary of English that many systems package.\n";
const char kQuickstartRest[] = R"(
data {
  text: "/usr/share/dictd/gcide.dict.dz"
  text: "text/toy.txt"
}

train {
  steps: 400
  sequence_length: 256
  micro_batch: 16
  global_batch: 16
  validate_every: 80
  validation_sequences: 64
}
)";

// The same with bfloat16 for matrix products.
std::string InBFloat16(std::string rest) {
  const std::string place = "  micro_batch: 1\n";
  rest.insert(rest.find(place), "  precision: BF16\n");
  return rest;
}

std::string ExpertLines(const Size& size, const Model& model) {
  if (model.experts == 0) return "";
  return absl::StrCat("  experts: ", model.experts, "\n  routed: ", model.routed,
                      "\n  shared: 2\n  expert_ffn: ", size.expert_ffn, "\n");
}

JobFile Render(const Size& size, const Model& model, const std::string& about,
               const std::string& rest) {
  const std::string separator = model.name.empty() ? "" : "_";
  JobFile file{.name = absl::StrCat(size.name, separator, model.name), .text = ""};
  absl::StrAppend(
      &file.text, "# ", model.title, ": ", ShortForm(model.plan), "\n#\n", about,
      "#\n# Written by `bazel run //launch:write_jobs`; change launch/job_table.cc.\n\n");
  absl::StrAppend(&file.text, "model {\n  d: ", size.d, "\n  heads: ", size.heads,
                  "\n  kv_heads: ", size.kv_heads, "\n  head_dim: ", size.head_dim,
                  "\n  ffn: ", size.ffn, "\n  vocabulary: ", size.vocabulary, "\n",
                  ExpertLines(size, model), model.settings);
  for (const PlanSegment& segment : model.plan) {
    absl::StrAppend(&file.text, "  ", SegmentText(segment), "\n");
  }
  absl::StrAppend(&file.text, "}\n", rest);
  return file;
}

}  // namespace

std::vector<JobFile> MakeJobFiles() {
  std::vector<JobFile> files;
  for (const Size& size : kSizes) {
    for (const Model& model : NamedModels()) {
      files.push_back(Render(size, model, kSizeAbout, kSizeRest));
    }
  }
  files.push_back(
      Render(kSizes[4], {"xmod_a3k16_8x8", "X-MoD A3K16", {Dense(4), Intervals(6, 48, 16)}},
             absl::StrCat(kClusterAbout, kSizeAbout), InBFloat16(kSizeRest) + kClusterRest));
  Model moe = MoE(128);
  moe.name += "_8x8";
  files.push_back(Render(kSizes[4], moe, absl::StrCat(kClusterAbout, kSizeAbout),
                         InBFloat16(kSizeRest) + kMoeClusterRest));
  for (const Model& model : Ablations()) {
    files.push_back(Render(kSizes[3], model, kSizeAbout, kSizeRest));
  }
  for (const Model& model : DeepModels()) {
    files.push_back(Render(kSizes[0], model, kSizeAbout, kSizeRest));
  }
  for (const Model& model : NamedModels()) {
    if (model.name == "mod" || model.name == "xmod_a1k16") continue;
    files.push_back(Render(kBenchSize, model, kBenchAbout, kBenchRest));
  }
  for (const Model& model : Toys()) {
    files.push_back(Render(kToySize, model, kToyAbout, kToyRest));
  }
  files.push_back(Render(kQuickstartSize, Quickstart(), kQuickstartAbout, kQuickstartRest));
  return files;
}

}  // namespace fathom
