#include "runtime/data/bpe_tokenizer.h"

#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "runtime/data/bpe_trainer.h"

namespace fathom {
namespace {

using Ids = std::vector<int32_t>;

constexpr char kText[] =
    "the cat sat on the mat and the dog sat on the log; they said that the other cat's hat was "
    "theirs, internationalization internationalization aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

BpeVocabulary Vocabulary() {
  BpeTrainer trainer;
  for (int i = 0; i < 3; ++i) trainer.Add(kText);
  auto vocabulary = trainer.Train(310);
  EXPECT_TRUE(vocabulary.ok()) << vocabulary.status();
  return *vocabulary;
}

std::unique_ptr<BpeTokenizer> Make(BpeVocabulary vocabulary) {
  auto tokenizer = BpeTokenizer::Create(std::move(vocabulary), "test");
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return std::move(*tokenizer);
}

Ids Encode(const Tokenizer& tokenizer, std::string_view text) {
  Ids ids;
  tokenizer.Encode(text, &ids);
  return ids;
}

// Splits, then merges the lowest rank again and again, on strings.
Ids Reference(const BpeVocabulary& vocabulary, std::string_view text) {
  Ids ids;
  const char* const end = text.data() + text.size();
  for (const char* at = text.data(); at < end;) {
    const char* const next = EndOfPiece(vocabulary.pattern, at, end);
    std::vector<std::string> parts;
    for (; at < next; ++at) parts.push_back(std::string(1, *at));
    for (const auto& merge : vocabulary.merges) {  // none of a later rank makes an earlier possible
      for (size_t i = 0; i + 1 < parts.size(); ++i) {
        if (parts[i] != vocabulary.tokens[merge.left]) continue;
        if (parts[i + 1] != vocabulary.tokens[merge.right]) continue;
        parts[i] += parts[i + 1];
        parts.erase(parts.begin() + i + 1);
      }
    }
    for (const std::string& part : parts) {
      ids.push_back(std::find(vocabulary.tokens.begin(), vocabulary.tokens.end(), part) -
                    vocabulary.tokens.begin());
    }
  }
  return ids;
}

TEST(BpeTokenizerTest, TokensAreThoseOfTheDefinition) {
  const BpeVocabulary vocabulary = Vocabulary();
  const auto tokenizer = Make(vocabulary);
  EXPECT_EQ(Encode(*tokenizer, kText), Reference(vocabulary, kText));
  EXPECT_LT(Encode(*tokenizer, kText).size(), sizeof(kText) / 2);
  std::mt19937 random(3);
  const std::string alphabet = "the catsondg. '1\n\xc3\xa9\xff";
  for (int i = 0; i < 1000; ++i) {
    std::string text(random() % 60, ' ');
    for (char& c : text) c = alphabet[random() % alphabet.size()];
    // Twice: the second time, pieces come from the thread's cache.
    ASSERT_EQ(Encode(*tokenizer, text), Reference(vocabulary, text)) << text;
    ASSERT_EQ(Encode(*tokenizer, text), Reference(vocabulary, text)) << text;
  }
}

TEST(BpeTokenizerTest, AnyBytesSurviveTheRoundTrip) {
  const auto tokenizer = Make(Vocabulary());
  std::mt19937 random(5);
  for (int i = 0; i < 2000; ++i) {
    std::string text(random() % 300, ' ');
    for (char& c : text) c = i % 2 == 0 ? static_cast<char>(random()) : kText[random() % 80];
    ASSERT_EQ(*tokenizer->Decode(Encode(*tokenizer, text)), text);
  }
  EXPECT_TRUE(Encode(*tokenizer, "").empty());
}

TEST(BpeTokenizerTest, EndOfDocumentComesOutOfNoTextAndDecodesToNothing) {
  const auto tokenizer = Make(Vocabulary());
  EXPECT_EQ(tokenizer->end_of_document(), 309);
  EXPECT_EQ(tokenizer->vocabulary(), 310);
  const Ids ids = Encode(*tokenizer, "<|endoftext|>");
  EXPECT_EQ(std::count(ids.begin(), ids.end(), 309), 0);
  EXPECT_EQ(*tokenizer->Decode({309, ids[0]}), "<");
  EXPECT_TRUE(absl::IsOutOfRange(tokenizer->Decode({310}).status()));
  EXPECT_TRUE(absl::IsOutOfRange(tokenizer->Decode({-1}).status()));
}

TEST(BpeTokenizerTest, TokenizersInOneThreadDoNotShareWhatTheyRemember) {
  BpeVocabulary vocabulary = Vocabulary();
  const auto first = Make(vocabulary);
  vocabulary.merges.resize(20);
  for (size_t id = 256 + 20; id < 309; ++id) {
    vocabulary.kinds[id] = BpeVocabulary::Kind::kSpecial;
  }
  const auto second = Make(vocabulary);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(Encode(*first, kText), Reference(Vocabulary(), kText));
    EXPECT_EQ(Encode(*second, kText), Reference(vocabulary, kText));
  }
  EXPECT_NE(first->hash(), second->hash());
}

TEST(BpeTokenizerTest, ManyThreadsEncodeAtOnce) {
  const auto tokenizer = Make(Vocabulary());
  const Ids wanted = Encode(*tokenizer, kText);
  std::vector<std::thread> threads;
  std::vector<int> wrong(4);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200; ++i) wrong[t] += Encode(*tokenizer, kText) != wanted;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4));
}

TEST(BpeTokenizerTest, MergesByBytesAreThoseOfTheList) {
  BpeVocabulary vocabulary = Vocabulary();
  const auto listed = Make(vocabulary);
  // The first 256 ids would have to rank below the merges anyway, and ids rise with the ranks.
  vocabulary.merges.clear();
  vocabulary.merges_by_bytes = true;
  vocabulary.whole_pieces = true;
  const auto by_bytes = Make(vocabulary);
  EXPECT_EQ(Encode(*by_bytes, kText), Encode(*listed, kText));
  EXPECT_EQ(by_bytes->hash(), listed->hash());
}

TEST(BpeTokenizerTest, WholePiecesTakeTokensThatMergingDoesNotReach) {
  BpeVocabulary vocabulary = Vocabulary();
  vocabulary.tokens.push_back("xyz");
  vocabulary.kinds.push_back(BpeVocabulary::Kind::kText);
  const auto merged = Make(vocabulary);
  EXPECT_EQ(Encode(*merged, "xyz").size(), 3);
  vocabulary.whole_pieces = true;
  const auto whole = Make(vocabulary);
  EXPECT_EQ(Encode(*whole, "xyz"), Ids{310});
  EXPECT_EQ(Encode(*whole, "xyzz").size(), 4);
  EXPECT_NE(merged->hash(), whole->hash());
}

TEST(BpeTokenizerTest, PrefixSpace) {
  BpeVocabulary vocabulary = Vocabulary();
  const auto plain = Make(vocabulary);
  vocabulary.add_prefix_space = true;
  const auto prefixed = Make(vocabulary);
  EXPECT_EQ(Encode(*prefixed, "the cat"), Encode(*plain, " the cat"));
  EXPECT_EQ(Encode(*prefixed, " the cat"), Encode(*plain, " the cat"));
  EXPECT_TRUE(Encode(*prefixed, "").empty());
  EXPECT_NE(plain->hash(), prefixed->hash());
}

TEST(BpeTokenizerTest, RefusesVocabulariesThatContradictThemselves) {
  BpeVocabulary vocabulary = Vocabulary();
  vocabulary.tokens[300] = vocabulary.tokens[299];
  EXPECT_TRUE(absl::IsInvalidArgument(BpeTokenizer::Create(vocabulary, "test").status()));
  vocabulary = Vocabulary();
  vocabulary.kinds[7] = BpeVocabulary::Kind::kSpecial;
  absl::Status status = BpeTokenizer::Create(vocabulary, "test").status();
  EXPECT_NE(status.ToString().find("test: no token stands for the byte 0x28"), std::string::npos)
      << status;
  vocabulary = Vocabulary();
  vocabulary.merges.push_back(vocabulary.merges[0]);
  EXPECT_TRUE(absl::IsInvalidArgument(BpeTokenizer::Create(vocabulary, "test").status()));
}

}  // namespace
}  // namespace fathom
