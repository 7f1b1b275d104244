#include "core/file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "core/status.h"

namespace fathom {
namespace {

class FileTest : public ::testing::Test {
 protected:
  FileTest() {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    directory_ = JoinPath(::testing::TempDir(), std::string("file_test_") + test->name());
    EXPECT_TRUE(files_.RemoveAll(directory_).ok());
    EXPECT_TRUE(files_.CreateDirectories(directory_).ok());
  }
  std::string Path(const std::string& name) { return JoinPath(directory_, name); }
  void Write(const std::string& path, std::string_view data) {
    auto file = files_.OpenForWrite(path);
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_TRUE((*file)->Append(data).ok());
    EXPECT_TRUE((*file)->Close().ok());
  }

  FileSystem& files_ = PosixFileSystem();
  std::string directory_;
};

TEST_F(FileTest, WritesAppendsAndReads) {
  Write(Path("a"), "first version, longer");
  Write(Path("a"), "one ");
  auto more = files_.OpenForAppend(Path("a"));
  ASSERT_TRUE(more.ok());
  EXPECT_TRUE((*more)->Append("two").ok());
  EXPECT_TRUE((*more)->Sync().ok());
  EXPECT_TRUE((*more)->Close().ok());
  EXPECT_EQ(*ReadFile(files_, Path("a")), "one two");
  EXPECT_TRUE(files_.Truncate(Path("a"), 3).ok());
  auto file = files_.OpenForRead(Path("a"));
  ASSERT_TRUE(file.ok());
  EXPECT_EQ((*file)->size(), 3);
  EXPECT_EQ((*file)->contents(), "one");
}

TEST_F(FileTest, EmptyFileIsReadable) {
  Write(Path("empty"), "");
  EXPECT_EQ(*ReadFile(files_, Path("empty")), "");
}

TEST_F(FileTest, MissingFileIsNotFoundWithPathAndReason) {
  const absl::Status status = files_.OpenForRead(Path("missing")).status();
  EXPECT_TRUE(absl::IsNotFound(status));
  EXPECT_NE(status.ToString().find(Path("missing")), std::string::npos);
  EXPECT_NE(status.ToString().find("No such file or directory"), std::string::npos);
}

TEST_F(FileTest, ErrorsNameThePath) {
  Write(Path("file"), "x");
  const std::string below = Path("file/below");
  for (const absl::Status& status : {
           files_.OpenForRead(directory_).status(),
           files_.OpenForWrite(below).status(),
           files_.List(below).status(),
           files_.CreateDirectories(below),
           files_.CreateDirectories(Path("file")),
           files_.SyncDirectory(below),
           files_.Rename(below, Path("other")),
           files_.Truncate(below, 0),
       }) {
    EXPECT_FALSE(status.ok());
    EXPECT_NE(status.ToString().find(directory_), std::string::npos) << status;
  }
}

TEST_F(FileTest, ListsSortedAndRemovesTrees) {
  EXPECT_TRUE(files_.CreateDirectories(Path("d/inner")).ok());
  EXPECT_TRUE(files_.CreateDirectories(Path("d/inner")).ok());
  Write(Path("d/b"), "");
  Write(Path("d/a"), "");
  EXPECT_EQ(*files_.List(Path("d")), (std::vector<std::string>{"a", "b", "inner"}));
  EXPECT_TRUE(files_.IsDirectory(Path("d/inner")));
  EXPECT_FALSE(files_.IsDirectory(Path("d/a")));
  EXPECT_TRUE(files_.RemoveAll(Path("d")).ok());
  EXPECT_FALSE(files_.Exists(Path("d")));
  EXPECT_TRUE(files_.RemoveAll(Path("d")).ok());
}

TEST_F(FileTest, AtomicWriteReplacesAndLeavesNothingElse) {
  EXPECT_TRUE(WriteFileAtomically(files_, Path("x"), "old").ok());
  EXPECT_TRUE(WriteFileAtomically(files_, Path("x"), "new").ok());
  EXPECT_EQ(*ReadFile(files_, Path("x")), "new");
  EXPECT_EQ(files_.List(directory_)->size(), 1);
  // A directory in the way: the rename fails, the temporary file goes.
  EXPECT_TRUE(files_.CreateDirectories(Path("taken")).ok());
  EXPECT_FALSE(WriteFileAtomically(files_, Path("taken"), "data").ok());
  EXPECT_EQ(files_.List(directory_)->size(), 2);
}

TEST(JoinPathTest, AddsOneSlash) {
  EXPECT_EQ(JoinPath("a", "b"), "a/b");
  EXPECT_EQ(JoinPath("a/", "b"), "a/b");
  EXPECT_EQ(JoinPath("", "b"), "b");
  EXPECT_EQ(JoinPath("/", "b"), "/b");
}

TEST(TemporaryPathTest, DiffersAtEveryCall) {
  EXPECT_EQ(TemporaryPath("dir/x").rfind("dir/x.tmp-", 0), 0);
  EXPECT_NE(TemporaryPath("x"), TemporaryPath("x"));
}

// A pipe that nobody writes to is refused, not waited for.
TEST_F(FileTest, APipeIsNotAFile) {
  const std::string path = JoinPath(::testing::TempDir(), "pipe");
  ASSERT_TRUE(PosixFileSystem().RemoveAll(path).ok());
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  const absl::Status status = PosixFileSystem().OpenForRead(path).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("it is not a file"), std::string::npos) << status;
}

}  // namespace
}  // namespace fathom
