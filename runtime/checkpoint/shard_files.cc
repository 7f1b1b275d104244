#include "runtime/checkpoint/shard_files.h"

#include <utility>

#include "core/check.h"
#include "core/mapped_memory.h"
#include "core/status.h"
#include "runtime/checksum.h"

namespace fathom {

ShardFiles::ShardFiles(FileSystem& files, std::string directory,
                       std::shared_ptr<const Manifest> manifest)
    : files_(files),
      directory_(std::move(directory)),
      manifest_(std::move(manifest)),
      open_(manifest_->files.size()) {}

absl::StatusOr<const ReadableFile*> ShardFiles::Open(int file, const std::string& tensor) {
  const std::lock_guard lock(opening_);
  OpenFile& open = open_[file];
  if (open.file != nullptr) return open.file.load();
  const ManifestFile& recorded = manifest_->files[file];
  const std::string path = JoinPath(directory_, recorded.name);
  auto opened = files_.OpenForRead(path);
  if (!opened.ok()) {
    // The manifest names it, so that it is missing is damage.
    const absl::StatusCode code =
        absl::IsNotFound(opened.status()) ? absl::StatusCode::kDataLoss : opened.status().code();
    return absl::Status(code,
                        absl::StrCat(opened.status().message(), " (needed for ", tensor, ")"));
  }
  if ((*opened)->size() != recorded.size) {
    return absl::DataLossError(absl::StrCat(path, " is damaged: it has ", (*opened)->size(),
                                            " bytes where the manifest says ", recorded.size,
                                            " (needed for ", tensor, ")"));
  }
  open.checked = std::vector<std::atomic<bool>>(recorded.blocks.size());
  open.owned = *std::move(opened);
  open.file = open.owned.get();
  return open.owned.get();
}

absl::StatusOr<std::string_view> ShardFiles::Read(int file, int64_t begin, int64_t end,
                                                  const std::string& tensor) {
  FATHOM_CHECK(begin < end);
  OpenFile& open = open_[file];
  const ReadableFile* opened = open.file;
  if (opened == nullptr) {
    FATHOM_ASSIGN_OR_RETURN(opened, Open(file, tensor));
  }
  const ManifestFile& recorded = manifest_->files[file];
  const std::string_view contents = opened->contents();
  for (int64_t block = begin / kBlockBytes; block * kBlockBytes < end; ++block) {
    if (open.checked[block]) continue;
    const int64_t first = block * kBlockBytes;
    const std::string_view bytes = contents.substr(first, kBlockBytes);
    FetchMapped(bytes);
    if (Checksum(bytes) != recorded.blocks[block]) {
      return absl::DataLossError(absl::StrCat(
          JoinPath(directory_, recorded.name), " is damaged: its bytes ", first, " to ",
          first + bytes.size() - 1, ", which hold ", tensor, ", do not match their checksum"));
    }
    open.checked[block] = true;
  }
  return contents.substr(begin, end - begin);
}

}  // namespace fathom
