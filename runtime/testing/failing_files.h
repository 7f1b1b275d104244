#pragma once

#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "core/file.h"
#include "core/status.h"
#include "runtime/testing/faulty_files.h"

namespace fathom {

// Passes everything on to the machine's files, and lets the n-th operation that changes something
// fail, and all after it, as a full disk or a killed process would. For tests.
class FailingFiles final : public FaultyFiles {
 public:
  // `fail_at`: how many changing operations succeed; negative: all.
  explicit FailingFiles(int64_t fail_at)
      : FaultyFiles(PosixFileSystem(),
                    [this](FileOperation, const std::string& path) { return Count(path); }),
        fail_at_(fail_at) {}

  // Changing operations so far, the failed ones included.
  int64_t operations() const { return operations_; }

 private:
  absl::Status Count(const std::string& path) {
    if (fail_at_ >= 0 && operations_++ >= fail_at_) {
      return absl::ResourceExhaustedError(absl::StrCat("injected failure at ", path));
    }
    operations_ += fail_at_ < 0;
    return absl::OkStatus();
  }

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
