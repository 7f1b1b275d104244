#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "launch/arguments.h"
#include "launch/commands.h"
#include "runtime/data/token_file.h"
#include "runtime/testing/failing_files.h"

namespace fathom {
namespace {

int Prepare(std::vector<std::string> words) {
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  return PrepareMain(argv.size(), argv.data());
}

TEST(PrepareMainTest, WritesThePrefixWithItsExtension) {
  const std::string directory = NewTestDirectory();
  const std::string a = JoinPath(directory, "a"), b = JoinPath(directory, "b");
  WriteTestFile(a, "first");
  WriteTestFile(b, "");
  for (const std::string output : {"new/x", "new/y.tokens"}) {
    const std::string prefix = JoinPath(directory, output);
    EXPECT_EQ(Prepare({"--tokenizer", "bytes", "--output", prefix, a, b}), kDone);
    auto file = TokenFile::Open(PosixFileSystem(), prefix);
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ((*file)->tokens(), 7);
    EXPECT_EQ((*file)->documents(), 2);
  }
  EXPECT_EQ(*PosixFileSystem().List(JoinPath(directory, "new")),
            (std::vector<std::string>{"x.tokens", "y.tokens"}));
}

TEST(PrepareMainTest, HelpIsNoError) { EXPECT_EQ(Prepare({"--help"}), kDone); }

TEST(PrepareMainTest, RefusesBadCommandLines) {
  const std::string directory = NewTestDirectory();
  const std::string a = JoinPath(directory, "a"), x = JoinPath(directory, "x");
  WriteTestFile(a, "text");
  EXPECT_EQ(Prepare({}), kRefused);
  EXPECT_EQ(Prepare({"--output", x, a}), kRefused);
  EXPECT_EQ(Prepare({"--tokenizer", "bytes", a}), kRefused);
  EXPECT_EQ(Prepare({"--tokenizer", "bytes", "--output", x}), kRefused);
  EXPECT_EQ(Prepare({"--tokenizer", "gpt2", "--output", x, a}), kRefused);
  EXPECT_EQ(Prepare({"--tokenizer", "bytes", "--output", x, "--format", "megatron", a}), kRefused);
  EXPECT_EQ(Prepare({"--tokenizer", "bytes", "--output", x, "--format", "zip", a}), kRefused);
  EXPECT_EQ(Prepare({"--tokenizer", "bytes", "--output", x, "--threads", "0", a}), kRefused);
  EXPECT_EQ(Prepare({"--tokenizer", "bytes", "--output", x, "--unknown", a}), kRefused);
  EXPECT_EQ(Prepare({"--tokenizer", "bytes", "--output", x, a + "missing"}), kRefused);
  EXPECT_EQ(PosixFileSystem().List(directory)->size(), 1);
}

TEST(PrepareMainTest, DamagedTextFailsTheRun) {
  const std::string directory = NewTestDirectory();
  WriteTestFile(JoinPath(directory, "a.gz"), "\x1f\x8b torn");
  EXPECT_EQ(Prepare({"--tokenizer", "bytes", "--output", JoinPath(directory, "x"),
                     JoinPath(directory, "a.gz")}),
            kRunFailed);
}

}  // namespace
}  // namespace fathom
