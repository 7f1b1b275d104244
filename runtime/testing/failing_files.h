#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/file.h"
#include "core/status.h"

namespace fathom {

// Passes everything on to the machine's files, and lets the n-th operation that changes something
// fail, and all after it, as a full disk or a killed process would. For tests.
class FailingFiles final : public FileSystem {
 public:
  // `fail_at`: how many changing operations succeed; negative: all.
  explicit FailingFiles(int64_t fail_at) : fail_at_(fail_at) {}

  // Changing operations so far, the failed ones included.
  int64_t operations() const { return operations_; }

  absl::StatusOr<std::unique_ptr<ReadableFile>> OpenForRead(const std::string& path) override {
    return base_.OpenForRead(path);
  }
  absl::StatusOr<std::unique_ptr<WritableFile>> OpenForWrite(const std::string& path) override {
    FATHOM_RETURN_IF_ERROR(Count(path));
    FATHOM_ASSIGN_OR_RETURN(auto file, base_.OpenForWrite(path));
    return std::make_unique<File>(*this, path, std::move(file));
  }
  absl::StatusOr<std::unique_ptr<WritableFile>> OpenForAppend(const std::string& path) override {
    FATHOM_RETURN_IF_ERROR(Count(path));
    FATHOM_ASSIGN_OR_RETURN(auto file, base_.OpenForAppend(path));
    return std::make_unique<File>(*this, path, std::move(file));
  }
  bool Exists(const std::string& path) override { return base_.Exists(path); }
  bool IsDirectory(const std::string& path) override { return base_.IsDirectory(path); }
  absl::StatusOr<std::vector<std::string>> List(const std::string& directory) override {
    return base_.List(directory);
  }
  absl::Status CreateDirectories(const std::string& path) override {
    FATHOM_RETURN_IF_ERROR(Count(path));
    return base_.CreateDirectories(path);
  }
  absl::Status SyncDirectory(const std::string& path) override {
    FATHOM_RETURN_IF_ERROR(Count(path));
    return base_.SyncDirectory(path);
  }
  absl::Status Rename(const std::string& from, const std::string& to) override {
    FATHOM_RETURN_IF_ERROR(Count(to));
    return base_.Rename(from, to);
  }
  absl::Status Truncate(const std::string& path, int64_t size) override {
    FATHOM_RETURN_IF_ERROR(Count(path));
    return base_.Truncate(path, size);
  }
  absl::Status RemoveAll(const std::string& path) override {
    FATHOM_RETURN_IF_ERROR(Count(path));
    return base_.RemoveAll(path);
  }

 private:
  class File final : public WritableFile {
   public:
    File(FailingFiles& files, std::string path, std::unique_ptr<WritableFile> base)
        : files_(files), path_(std::move(path)), base_(std::move(base)) {}
    absl::Status Append(std::string_view data) override {
      const absl::Status status = files_.Count(path_);
      // Half of the data arrives, as it does when the disk becomes full.
      const absl::Status written =
          base_->Append(status.ok() ? data : data.substr(0, data.size() / 2));
      return status.ok() ? written : status;
    }
    absl::Status Sync() override {
      FATHOM_RETURN_IF_ERROR(files_.Count(path_));
      return base_->Sync();
    }
    absl::Status Close() override {
      FATHOM_RETURN_IF_ERROR(files_.Count(path_));
      return base_->Close();
    }

   private:
    FailingFiles& files_;
    std::string path_;
    std::unique_ptr<WritableFile> base_;
  };

  absl::Status Count(const std::string& path) {
    if (fail_at_ >= 0 && operations_++ >= fail_at_) {
      return absl::ResourceExhaustedError(absl::StrCat("injected failure at ", path));
    }
    operations_ += fail_at_ < 0;
    return absl::OkStatus();
  }

  FileSystem& base_ = PosixFileSystem();
  int64_t fail_at_;
  int64_t operations_ = 0;
};

// A fresh directory for the running test.
inline std::string NewTestDirectory() {
  const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
  const std::string path =
      JoinPath(::testing::TempDir(), std::string(test->test_suite_name()) + "_" + test->name());
  EXPECT_TRUE(PosixFileSystem().RemoveAll(path).ok());
  EXPECT_TRUE(PosixFileSystem().CreateDirectories(path).ok());
  return path;
}

// Writes a file as it is.
inline void WriteTestFile(const std::string& path, std::string_view data) {
  auto file = PosixFileSystem().OpenForWrite(path);
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_TRUE((*file)->Append(data).ok());
  ASSERT_TRUE((*file)->Close().ok());
}

}  // namespace fathom
