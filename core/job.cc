#include "core/job.h"

#include <filesystem>
#include <utility>

#include "core/check.h"
#include "core/file.h"
#include "core/job_config.h"
#include "core/job_text.h"
#include "core/status.h"
#include "proto/job.pb.h"

namespace fathom {
namespace {

// The same error, with the job's name or path before it.
absl::Status WithSource(const absl::Status& status, const std::string& source) {
  return absl::Status(status.code(), absl::StrCat(source, ": ", status.message()));
}

absl::StatusOr<proto::Job> ParseMessage(const std::string& text, const std::string& source) {
  proto::Job message;
  const absl::Status status = ParseTextFormat(text, &message);
  if (!status.ok()) return WithSource(status, source);
  return message;
}

// Applies the overrides to a parsed job and validates it.
absl::StatusOr<Job> Resolve(proto::Job message, const std::string& name, const std::string& source,
                            const std::vector<std::string>& overrides) {
  for (const std::string& text : overrides) {
    FATHOM_RETURN_IF_ERROR(ApplyOverride(text, &message));
  }
  if (!message.has_name()) message.set_name(name);
  absl::StatusOr<Job> job = ToJob(&message);
  if (!job.ok()) return WithSource(job.status(), source);
  return job;
}

}  // namespace

DType ComputeDType(Precision precision) {
  switch (precision) {
    case Precision::kFloat32:
      return DType::kFloat32;
    case Precision::kBFloat16:
      return DType::kBFloat16;
    case Precision::kFloat64:
      return DType::kFloat64;
  }
  FATHOM_CHECK(false) << "unknown precision " << static_cast<int>(precision);
  return DType::kFloat32;
}

absl::StatusOr<Job> ParseJob(const std::string& text, const std::string& name,
                             const std::vector<std::string>& overrides) {
  FATHOM_ASSIGN_OR_RETURN(proto::Job message, ParseMessage(text, name));
  return Resolve(std::move(message), name, name, overrides);
}

absl::StatusOr<Job> ReadJob(const std::string& path, const std::vector<std::string>& overrides) {
  FATHOM_ASSIGN_OR_RETURN(const std::string text, ReadFile(PosixFileSystem(), path));
  FATHOM_ASSIGN_OR_RETURN(proto::Job message, ParseMessage(text, path));
  // Operator / keeps an absolute path as it is.
  const std::filesystem::path file(path);
  for (std::string& entry : *message.mutable_data()->mutable_text()) {
    if (!entry.empty()) entry = (file.parent_path() / entry).string();
  }
  return Resolve(std::move(message), file.stem().string(), path, overrides);
}

}  // namespace fathom
