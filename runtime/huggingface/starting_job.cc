#include "runtime/huggingface/starting_job.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "nlohmann/json.hpp"

namespace fathom {
namespace {

// The shortest digits that mean the same number.
std::string Digits(double number) { return nlohmann::json(number).dump(); }

std::string Quote(const std::string& text) { return absl::StrCat("\"", absl::CEscape(text), "\""); }

std::string PlanText(const std::vector<PlanSegment>& segments) {
  std::string text;
  for (const PlanSegment& segment : segments) {
    FATHOM_CHECK(segment.group.empty() && segment.layer.kind == LayerKind::kDense);
    absl::StrAppend(&text, "  plan { repeat: ", segment.repeat, " ",
                    segment.layer.experts ? "moe {}" : "dense {}", " }\n");
  }
  return text;
}

std::string ModelText(const ModelConfig& model) {
  std::string text = absl::StrCat(
      "model {\n  d: ", model.d, "\n  heads: ", model.heads, "\n  kv_heads: ", model.kv_heads,
      "\n  head_dim: ", model.head_dim, "\n  vocabulary: ", model.vocabulary,
      "\n  theta: ", Digits(model.theta), "\n  eps: ", Digits(model.eps), "\n");
  if (model.plan.has_dense_ffn() || model.ffn > 0)
    absl::StrAppend(&text, "  ffn: ", model.ffn, "\n");
  if (model.plan.has_experts()) {
    absl::StrAppend(&text, "  experts: ", model.experts, "\n  routed: ", model.routed,
                    "\n  shared: ", model.shared, "\n  expert_ffn: ", model.expert_ffn, "\n");
  }
  return absl::StrCat(text, PlanText(model.plan.segments), "}\n");
}

std::string DataText(const StartingJob& job) {
  std::string text = "data {\n";
  if (!job.about_tokenizer.empty()) {
    absl::StrAppend(&text, "  # ", absl::CEscape(job.about_tokenizer), "\n");
  }
  if (!job.tokenizer.empty()) absl::StrAppend(&text, "  tokenizer: ", Quote(job.tokenizer), "\n");
  return absl::StrCat(text,
                      "  # Beside this file. Or name what there is: --set data.text=FILE, or\n"
                      "  # --set data.train=PREFIX.tokens for what `fathom prepare` made.\n"
                      "  text: \"train.txt\"\n}\n");
}

}  // namespace

std::string MakeStartingJob(const StartingJob& job) {
  const std::string weights = absl::CEscape(job.weights);
  return absl::StrCat("# ", ShortForm(job.model.plan.segments), ", from Hugging Face\n#\n",
                      "# fathom train ", weights, "/job.txtpb --set train.init_from=", weights,
                      "\n\nname: ", Quote(job.name), "\n\n", ModelText(job.model), "\n",
                      DataText(job),
                      "\ntrain {\n  steps: 1000\n  sequence_length: ", job.sequence_length,
                      "\n  micro_batch: 1\n  global_batch: 8\n}\n");
}

}  // namespace fathom
