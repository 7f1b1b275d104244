#include "launch/token_losses.h"

#include <cmath>

#include "absl/strings/str_format.h"
#include "core/status.h"

namespace fathom {

absl::StatusOr<std::unique_ptr<TokenLossWriter>> TokenLossWriter::Create(FileSystem& files,
                                                                         const std::string& path) {
  const std::string temporary = TemporaryPath(path);
  FATHOM_ASSIGN_OR_RETURN(auto file, files.OpenForWrite(temporary));
  return std::unique_ptr<TokenLossWriter>(
      new TokenLossWriter(files, path, temporary, std::move(file)));
}

TokenLossWriter::~TokenLossWriter() {
  if (!closed_) files_.RemoveAll(temporary_).IgnoreError();
}

absl::Status TokenLossWriter::Write(int64_t first_sequence, const HostBatch& host,
                                    const std::vector<double>& losses) {
  std::string lines;
  for (size_t i = 0; i < losses.size(); ++i) {
    if (host.labels[i] < 0) continue;
    absl::StrAppendFormat(&lines, "{\"sequence\": %d, \"position\": %d, \"label\": %d, \"loss\": ",
                          first_sequence + static_cast<int64_t>(i) / host.length,
                          static_cast<int64_t>(i) % host.length, host.labels[i]);
    // JSON has no numbers that are not finite.
    if (std::isfinite(losses[i])) {
      absl::StrAppendFormat(&lines, "%.17g}\n", losses[i]);
    } else {
      absl::StrAppend(&lines, "null}\n");
    }
  }
  return file_->Append(lines);
}

absl::Status TokenLossWriter::Close() {
  FATHOM_RETURN_IF_ERROR(file_->Sync());
  FATHOM_RETURN_IF_ERROR(file_->Close());
  FATHOM_RETURN_IF_ERROR(files_.Rename(temporary_, path_));
  closed_ = true;
  return absl::OkStatus();
}

}  // namespace fathom
