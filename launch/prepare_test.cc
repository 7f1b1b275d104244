#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "launch/arguments.h"
#include "launch/commands.h"
#include "runtime/data/open_tokens.h"
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
  EXPECT_EQ(Prepare({"--tokenizer", "bytes", "--output", x, "--format", "zip", a}), kRefused);
  EXPECT_EQ(Prepare({"--tokenizer", "bytes", "--output", x, "--threads", "0", a}), kRefused);
  EXPECT_EQ(Prepare({"--tokenizer", "bytes", "--output", x, "--unknown", a}), kRefused);
  EXPECT_EQ(Prepare({"--tokenizer", "bytes", "--output", x, "--field", "", a}), kRefused);
  EXPECT_EQ(Prepare({"--tokenizer", "bytes", "--output", x, "-", "-"}), kRefused);
  EXPECT_EQ(Prepare({"--tokenizer", "bytes", "--train-bpe", "300", "--output", x, a}), kRefused);
  EXPECT_EQ(Prepare({"--train-bpe", "256", "--output", x, a}), kRefused);
  EXPECT_EQ(Prepare({"--train-bpe", "300", "--output", x, "-"}), kRefused);
  EXPECT_EQ(Prepare({"--train-bpe", "300", "--output", x, a}), kRefused);  // too little text
  EXPECT_EQ(Prepare({"--tokenizer", "bytes", "--output", x, a + "missing"}), kRefused);
  EXPECT_EQ(PosixFileSystem().List(directory)->size(), 1);
}

TEST(PrepareMainTest, Megatron) {
  const std::string directory = NewTestDirectory();
  const std::string a = JoinPath(directory, "a.jsonl"), x = JoinPath(directory, "x");
  WriteTestFile(a, "{\"body\":\"hi\"}\n{\"body\":[7,8]}\n");
  EXPECT_EQ(Prepare({"--tokenizer", "bytes", "--output", x, "--format", "megatron", a}), kRefused);
  EXPECT_EQ(Prepare({"--tokenizer", "bytes", "--output", x, "--format", "megatron", "--field",
                     "body", "--threads", "2", a}),
            kDone);
  auto file = OpenTokens(PosixFileSystem(), x);
  ASSERT_TRUE(file.ok()) << file.status();
  std::vector<int32_t> tokens((*file)->tokens());
  (*file)->Read(0, tokens.size(), tokens.data());
  EXPECT_EQ(tokens, (std::vector<int32_t>{'h', 'i', 256, 7, 8, 256}));
  EXPECT_EQ(PosixFileSystem().List(directory)->size(), 3);
}

TEST(PrepareMainTest, TrainsAVocabularyAndUsesIt) {
  const std::string directory = NewTestDirectory();
  const std::string a = JoinPath(directory, "a"), x = JoinPath(directory, "x");
  std::string text;
  for (int i = 0; i < 100; ++i) text += "the cat and the hat\n";
  WriteTestFile(a, text);
  ASSERT_EQ(Prepare({"--train-bpe", "262", "--output", x, a}), kDone);
  auto file = OpenTokens(PosixFileSystem(), x);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->vocabulary(), 262);
  EXPECT_LT((*file)->tokens(), static_cast<int64_t>(text.size()));
  // The vocabulary that was written is the one that was used.
  ASSERT_EQ(Prepare({"--tokenizer", x + ".tokenizer", "--output", x + "2", a}), kDone);
  auto second = OpenTokens(PosixFileSystem(), x + "2");
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ((*second)->tokenizer_hash(), (*file)->tokenizer_hash());
  EXPECT_EQ((*second)->tokens(), (*file)->tokens());
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
