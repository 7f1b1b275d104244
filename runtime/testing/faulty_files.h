#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/file.h"
#include "core/status.h"

namespace fathom {

enum class FileOperation {
  kOpen,  // for writing
  kAppend,
  kSync,
  kClose,
  kCreateDirectory,
  kSyncDirectory,
  kRename,
  kTruncate,
  kRemove,
};

// Passes everything on to other files, unless `fault` has an error for it: then nothing happens,
// but that half of the data of an append arrives, as it does when a disk becomes full. For tests;
// `fault` is called by the threads that use the files, one at a time or not.
class FaultyFiles : public FileSystem {
 public:
  using Fault = std::function<absl::Status(FileOperation, const std::string& path)>;

  FaultyFiles(FileSystem& base, Fault fault) : base_(base), fault_(std::move(fault)) {}

  absl::StatusOr<std::unique_ptr<ReadableFile>> OpenForRead(const std::string& path) override {
    return base_.OpenForRead(path);
  }
  absl::StatusOr<std::unique_ptr<WritableFile>> OpenForWrite(const std::string& path) override {
    FATHOM_RETURN_IF_ERROR(fault_(FileOperation::kOpen, path));
    FATHOM_ASSIGN_OR_RETURN(auto file, base_.OpenForWrite(path));
    return std::make_unique<File>(*this, path, std::move(file));
  }
  absl::StatusOr<std::unique_ptr<WritableFile>> OpenForAppend(const std::string& path) override {
    FATHOM_RETURN_IF_ERROR(fault_(FileOperation::kOpen, path));
    FATHOM_ASSIGN_OR_RETURN(auto file, base_.OpenForAppend(path));
    return std::make_unique<File>(*this, path, std::move(file));
  }
  bool Exists(const std::string& path) override { return base_.Exists(path); }
  bool IsDirectory(const std::string& path) override { return base_.IsDirectory(path); }
  absl::StatusOr<std::vector<std::string>> List(const std::string& directory) override {
    return base_.List(directory);
  }
  absl::Status CreateDirectories(const std::string& path) override {
    FATHOM_RETURN_IF_ERROR(fault_(FileOperation::kCreateDirectory, path));
    return base_.CreateDirectories(path);
  }
  absl::Status SyncDirectory(const std::string& path) override {
    FATHOM_RETURN_IF_ERROR(fault_(FileOperation::kSyncDirectory, path));
    return base_.SyncDirectory(path);
  }
  absl::Status Rename(const std::string& from, const std::string& to) override {
    FATHOM_RETURN_IF_ERROR(fault_(FileOperation::kRename, to));
    return base_.Rename(from, to);
  }
  absl::Status Truncate(const std::string& path, int64_t size) override {
    FATHOM_RETURN_IF_ERROR(fault_(FileOperation::kTruncate, path));
    return base_.Truncate(path, size);
  }
  absl::Status RemoveAll(const std::string& path) override {
    FATHOM_RETURN_IF_ERROR(fault_(FileOperation::kRemove, path));
    return base_.RemoveAll(path);
  }

 private:
  class File final : public WritableFile {
   public:
    File(FaultyFiles& files, std::string path, std::unique_ptr<WritableFile> base)
        : files_(files), path_(std::move(path)), base_(std::move(base)) {}
    absl::Status Append(std::string_view data) override {
      const absl::Status fault = files_.fault_(FileOperation::kAppend, path_);
      const absl::Status written =
          base_->Append(fault.ok() ? data : data.substr(0, data.size() / 2));
      return fault.ok() ? written : fault;
    }
    absl::Status Sync() override {
      FATHOM_RETURN_IF_ERROR(files_.fault_(FileOperation::kSync, path_));
      return base_->Sync();
    }
    absl::Status Close() override {
      FATHOM_RETURN_IF_ERROR(files_.fault_(FileOperation::kClose, path_));
      return base_->Close();
    }

   private:
    FaultyFiles& files_;
    std::string path_;
    std::unique_ptr<WritableFile> base_;
  };

  FileSystem& base_;
  Fault fault_;
};

}  // namespace fathom
