#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "core/file.h"
#include "runtime/checkpoint/manifest.h"

namespace fathom {

// The files of a checkpoint, opened when needed, of which nothing is read that has not been checked
// against the manifest. Thread-safe.
class ShardFiles {
 public:
  // `manifest` is that of `directory`; `files` outlives the object.
  ShardFiles(FileSystem& files, std::string directory, std::shared_ptr<const Manifest> manifest);

  // Bytes begin to end - 1 of a file, in which end - begin > 0, valid while this object lives.
  // DataLoss when the file's size, or a block that they touch, is not as the manifest says; the
  // file system's error when the file cannot be opened. Messages name the file, and `tensor` as
  // what is lost.
  absl::StatusOr<std::string_view> Read(int file, int64_t begin, int64_t end,
                                        const std::string& tensor);

  const std::string& directory() const { return directory_; }
  // Whether a file has been opened and has the size that it should.
  bool IsOpen(int file) const { return open_[file].file.load() != nullptr; }

 private:
  struct OpenFile {
    std::unique_ptr<const ReadableFile> owned;
    std::atomic<const ReadableFile*> file = nullptr;  // until it has been opened
    std::vector<std::atomic<bool>> checked;           // of each block
  };

  absl::StatusOr<const ReadableFile*> Open(int file, const std::string& tensor);

  FileSystem& files_;
  std::string directory_;
  std::shared_ptr<const Manifest> manifest_;
  std::mutex opening_;
  std::vector<OpenFile> open_;
};

}  // namespace fathom
