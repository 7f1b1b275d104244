#include "runtime/metrics.h"

#include <cmath>
#include <string_view>
#include <utility>

#include "absl/strings/str_format.h"
#include "core/status.h"
#include "nlohmann/json.hpp"

namespace fathom {
namespace {

void AppendNumber(const char* name, double value, std::string* line) {
  if (std::isfinite(value)) {
    absl::StrAppendFormat(line, ", \"%s\": %.17g", name, value);
  } else {
    absl::StrAppendFormat(line, ", \"%s\": null", name);
  }
}

std::string Begin(const char* kind, int64_t step, int64_t consumed_sequences) {
  return absl::StrFormat("{\"kind\": \"%s\", \"step\": %d, \"consumed_sequences\": %d", kind, step,
                         consumed_sequences);
}

// Whether a line is a record of a step up to `step`.
bool IsKept(std::string_view line, int64_t step) {
  const auto record = nlohmann::json::parse(line.begin(), line.end(), nullptr,
                                            /*allow_exceptions=*/false);
  if (!record.is_object() || !record.contains("step")) return false;
  const auto& recorded = record["step"];
  return recorded.is_number_integer() && recorded.get<int64_t>() <= step;
}

std::string KeptRecords(std::string_view text, int64_t step) {
  std::string kept;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    if (end == std::string_view::npos) break;  // torn
    if (IsKept(text.substr(0, end), step)) kept.append(text.substr(0, end + 1));
    text.remove_prefix(end + 1);
  }
  return kept;
}

}  // namespace

std::string FormatRecord(const TrainRecord& record) {
  std::string line = Begin("train", record.step, record.consumed_sequences);
  AppendNumber("loss", record.loss, &line);
  AppendNumber("auxiliary_loss", record.auxiliary_loss, &line);
  AppendNumber("gradient_norm", record.gradient_norm, &line);
  AppendNumber("learning_rate", record.learning_rate, &line);
  if (record.experts.has_value()) {
    AppendNumber("expert_violation", record.experts->violation, &line);
    AppendNumber("expert_entropy", record.experts->entropy, &line);
  }
  AppendNumber("tokens_per_second", record.tokens_per_second, &line);
  AppendNumber("seconds", record.seconds, &line);
  return line + "}";
}

std::string FormatRecord(const ValidationRecord& record) {
  std::string line = Begin("validation", record.step, record.consumed_sequences);
  AppendNumber("loss_topk", record.loss_topk, &line);
  AppendNumber("loss_causal", record.loss_causal, &line);
  AppendNumber("seconds", record.seconds, &line);
  return line + "}";
}

absl::StatusOr<std::unique_ptr<MetricsWriter>> MetricsWriter::Create(FileSystem& files,
                                                                     const std::string& path) {
  FATHOM_ASSIGN_OR_RETURN(auto file, files.OpenForWrite(path));
  return std::unique_ptr<MetricsWriter>(new MetricsWriter(std::move(file)));
}

absl::StatusOr<std::unique_ptr<MetricsWriter>> MetricsWriter::OpenForResume(FileSystem& files,
                                                                            const std::string& path,
                                                                            int64_t step) {
  if (files.Exists(path)) {
    FATHOM_ASSIGN_OR_RETURN(const std::string text, ReadFile(files, path));
    const std::string kept = KeptRecords(text, step);
    if (kept != text) FATHOM_RETURN_IF_ERROR(WriteFileAtomically(files, path, kept));
  }
  FATHOM_ASSIGN_OR_RETURN(auto file, files.OpenForAppend(path));
  return std::unique_ptr<MetricsWriter>(new MetricsWriter(std::move(file)));
}

absl::Status MetricsWriter::Write(const TrainRecord& record) {
  return file_->Append(FormatRecord(record) + "\n");
}

absl::Status MetricsWriter::Write(const ValidationRecord& record) {
  return file_->Append(FormatRecord(record) + "\n");
}

absl::Status MetricsWriter::Close() { return file_->Close(); }

}  // namespace fathom
