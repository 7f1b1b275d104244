#include "launch/token_losses.h"

#include <gtest/gtest.h>

#include "runtime/testing/failing_files.h"

namespace fathom {
namespace {

HostBatch TwoSequencesOfThree() {
  HostBatch host = HostBatch::WholeSequences(2, 3);
  host.labels = {7, 8, -1, 9, 10, 11};
  return host;
}

TEST(TokenLossesTest, OneLineForEveryCountedToken) {
  const std::string path = JoinPath(NewTestDirectory(), "losses.jsonl");
  auto writer = TokenLossWriter::Create(PosixFileSystem(), path);
  ASSERT_TRUE(writer.ok()) << writer.status();
  ASSERT_TRUE((*writer)->Write(4, TwoSequencesOfThree(), {0.1, 2, 0, 0.25, 5, 1.0 / 0.0}).ok());
  EXPECT_FALSE(PosixFileSystem().Exists(path));
  ASSERT_TRUE((*writer)->Close().ok());
  EXPECT_EQ(*ReadFile(PosixFileSystem(), path),
            "{\"sequence\": 4, \"position\": 0, \"label\": 7, \"loss\": 0.10000000000000001}\n"
            "{\"sequence\": 4, \"position\": 1, \"label\": 8, \"loss\": 2}\n"
            "{\"sequence\": 5, \"position\": 0, \"label\": 9, \"loss\": 0.25}\n"
            "{\"sequence\": 5, \"position\": 1, \"label\": 10, \"loss\": 5}\n"
            "{\"sequence\": 5, \"position\": 2, \"label\": 11, \"loss\": null}\n");
}

TEST(TokenLossesTest, AFailureLeavesTheOldFile) {
  const std::string directory = NewTestDirectory();
  const std::string path = JoinPath(directory, "losses.jsonl");
  WriteTestFile(path, "old");
  for (int64_t fail_at = 0; fail_at < 5; ++fail_at) {
    FailingFiles files(fail_at);
    absl::Status status;
    {
      auto writer = TokenLossWriter::Create(files, path);
      status = writer.status();
      if (status.ok()) {
        status = (*writer)->Write(0, TwoSequencesOfThree(), std::vector<double>(6, 1));
      }
      if (status.ok()) status = (*writer)->Close();
    }
    EXPECT_FALSE(status.ok()) << fail_at;
    EXPECT_EQ(*ReadFile(PosixFileSystem(), path), "old");
  }
}

}  // namespace
}  // namespace fathom
