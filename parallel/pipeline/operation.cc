#include "parallel/pipeline/operation.h"

#include "absl/strings/str_cat.h"

namespace fathom {
namespace {

std::string ToString(const PipelineOperation& operation, const PipelineShape& shape) {
  const bool forward = operation.action == PipelineAction::kForward ||
                       operation.action == PipelineAction::kSendActivation ||
                       operation.action == PipelineAction::kReceiveActivation;
  const char* kind = operation.computes() ? (forward ? "F" : "B") : (forward ? "a" : "g");
  std::string text = absl::StrCat(kind, operation.micro_batch);
  if (shape.chunks > 1) absl::StrAppend(&text, ".", operation.chunk);
  if (!operation.computes()) {
    absl::StrAppend(&text, operation.sends() ? ">" : "<", operation.peer);
  }
  return text;
}

std::string Join(const PipelineList& list, const PipelineShape& shape, bool transfers) {
  std::string text;
  for (const PipelineOperation& operation : list) {
    if (!transfers && !operation.computes()) continue;
    absl::StrAppend(&text, text.empty() ? "" : " ", ToString(operation, shape));
  }
  return text;
}

}  // namespace

std::string ToString(const PipelineList& list, const PipelineShape& shape) {
  return Join(list, shape, true);
}

std::string ComputeOrder(const PipelineList& list, const PipelineShape& shape) {
  return Join(list, shape, false);
}

}  // namespace fathom
