#include "runtime/checkpoint/shard_files.h"

#include <utility>

#include "core/check.h"
#include "core/status.h"
#include "runtime/checksum.h"

namespace fathom {

ShardFiles::ShardFiles(FileSystem& files, std::string directory,
                       std::shared_ptr<const Manifest> manifest)
    : files_(files),
      directory_(std::move(directory)),
      manifest_(std::move(manifest)),
      open_(manifest_->files.size()) {}

absl::Status ShardFiles::Open(int file, const std::string& tensor) {
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
  open_[file] = {*std::move(opened), std::vector<bool>(recorded.blocks.size())};
  return absl::OkStatus();
}

absl::StatusOr<std::string_view> ShardFiles::Read(int file, int64_t begin, int64_t end,
                                                  const std::string& tensor) {
  FATHOM_CHECK(begin < end);
  if (open_[file].file == nullptr) FATHOM_RETURN_IF_ERROR(Open(file, tensor));
  OpenFile& opened = open_[file];
  const ManifestFile& recorded = manifest_->files[file];
  const std::string_view contents = opened.file->contents();
  for (int64_t block = begin / kBlockBytes; block * kBlockBytes < end; ++block) {
    if (opened.checked[block]) continue;
    const int64_t first = block * kBlockBytes;
    const std::string_view bytes = contents.substr(first, kBlockBytes);
    if (Checksum(bytes) != recorded.blocks[block]) {
      return absl::DataLossError(absl::StrCat(
          JoinPath(directory_, recorded.name), " is damaged: its bytes ", first, " to ",
          first + bytes.size() - 1, ", which hold ", tensor, ", do not match their checksum"));
    }
    opened.checked[block] = true;
  }
  return contents.substr(begin, end - begin);
}

}  // namespace fathom
