#include "runtime/data/tokenizer.h"

#include <gtest/gtest.h>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace fathom {
namespace {

TEST(ByteTokenizerTest, AnyBytesSurviveTheRoundTrip) {
  auto tokenizer = MakeTokenizer("bytes");
  ASSERT_TRUE(tokenizer.ok());
  std::string text = "caf\xc3\xa9 \xff\xfe<|endoftext|>";
  for (int i = 0; i < 256; ++i) text.push_back(static_cast<char>(i));
  std::vector<int32_t> tokens = {7};
  (*tokenizer)->Encode(text, &tokens);
  ASSERT_EQ(tokens.size(), text.size() + 1);  // appended, one token per byte
  EXPECT_EQ(tokens[0], 7);
  EXPECT_EQ(tokens[4], 0xc3);
  tokens.erase(tokens.begin());
  EXPECT_EQ(*(*tokenizer)->Decode(tokens), text);
}

TEST(ByteTokenizerTest, EndOfDocumentIsTheLastToken) {
  auto tokenizer = MakeTokenizer("bytes");
  EXPECT_EQ((*tokenizer)->vocabulary(), 257);
  EXPECT_EQ((*tokenizer)->end_of_document(), 256);
  EXPECT_EQ(*(*tokenizer)->Decode({'a', 256, 'b'}), "ab");
  EXPECT_TRUE(absl::IsOutOfRange((*tokenizer)->Decode({257}).status()));
  EXPECT_TRUE(absl::IsOutOfRange((*tokenizer)->Decode({-1}).status()));
}

TEST(MakeTokenizerTest, RefusesOtherNames) {
  const absl::Status status = MakeTokenizer("gpt2").status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_NE(status.ToString().find("gpt2"), std::string::npos);
}

TEST(MakeTokenizerTest, ReadsVocabularies) {
  const std::string path = TemporaryPath(testing::TempDir() + "/ranks");
  std::string ranks;  // the 256 bytes and "ab", as a tiktoken file
  for (int i = 0; i < 256; ++i) {
    absl::StrAppend(&ranks, absl::Base64Escape(std::string(1, static_cast<char>(i))), " ", i, "\n");
  }
  ASSERT_TRUE(WriteFileAtomically(PosixFileSystem(), path, ranks + "YWI= 256\n").ok());
  auto tokenizer = MakeTokenizer(path);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->name(), "bpe");
  EXPECT_EQ((*tokenizer)->vocabulary(), 258);
  std::vector<int32_t> tokens;
  (*tokenizer)->Encode("abc", &tokens);
  EXPECT_EQ(tokens, (std::vector<int32_t>{256, 'c'}));
  // Another vocabulary, another hash.
  ASSERT_TRUE(WriteFileAtomically(PosixFileSystem(), path, ranks + "YWM= 256\n").ok());
  EXPECT_NE((*MakeTokenizer(path))->hash(), (*tokenizer)->hash());
  EXPECT_TRUE(PosixFileSystem().RemoveAll(path).ok());
}

}  // namespace
}  // namespace fathom
