#include "runtime/checkpoint/block_writer.h"

#include <algorithm>

#include "core/check.h"
#include "core/status.h"
#include "runtime/checksum.h"

namespace fathom {

BlockWriter::BlockWriter(std::unique_ptr<WritableFile> file) : file_(std::move(file)) {
  pending_.reserve(kBlockBytes);
}

absl::Status BlockWriter::Append(std::string_view data) {
  FATHOM_CHECK(pending_.size() == static_cast<size_t>(size_ % kBlockBytes))
      << "data behind a block that is not full";
  size_ += static_cast<int64_t>(data.size());
  while (!data.empty()) {
    if (pending_.empty() && data.size() >= kBlockBytes) {
      // Not copied, since it is whole.
      FATHOM_RETURN_IF_ERROR(WriteBlock(data.substr(0, kBlockBytes)));
      data.remove_prefix(kBlockBytes);
      continue;
    }
    const size_t count = std::min<size_t>(data.size(), kBlockBytes - pending_.size());
    pending_.append(data.substr(0, count));
    data.remove_prefix(count);
    if (pending_.size() == kBlockBytes) FATHOM_RETURN_IF_ERROR(Flush());
  }
  return absl::OkStatus();
}

absl::Status BlockWriter::WriteBlock(std::string_view block) {
  blocks_.push_back(Checksum(block));
  return file_->Append(block);
}

absl::Status BlockWriter::Flush() {
  if (pending_.empty()) return absl::OkStatus();
  FATHOM_RETURN_IF_ERROR(WriteBlock(pending_));
  pending_.clear();
  return absl::OkStatus();
}

absl::Status BlockWriter::Sync() {
  FATHOM_RETURN_IF_ERROR(Flush());
  return file_->Sync();
}

absl::Status BlockWriter::Close() {
  FATHOM_RETURN_IF_ERROR(Flush());
  return file_->Close();
}

}  // namespace fathom
