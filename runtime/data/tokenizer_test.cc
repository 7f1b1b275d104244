#include "runtime/data/tokenizer.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace fathom
