#include "runtime/data/bpe_trainer.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace fathom {
namespace {

// By the definition: count all pairs anew for every merge.
std::vector<std::pair<int32_t, int32_t>> ReferenceMerges(
    const std::map<std::vector<int32_t>, int64_t>& words, int merges) {
  std::map<std::vector<int32_t>, int64_t> current = words;
  std::vector<std::pair<int32_t, int32_t>> found;
  for (int32_t result = 256; found.size() < merges; ++result) {
    std::map<std::pair<int32_t, int32_t>, int64_t> counts;
    for (const auto& [ids, count] : current) {
      for (size_t i = 0; i + 1 < ids.size(); ++i) counts[{ids[i], ids[i + 1]}] += count;
    }
    std::pair<int32_t, int32_t> best;
    int64_t most = 0;
    for (const auto& [pair, count] : counts) {  // ascending, so the first of equals stays
      if (count > most) {
        most = count;
        best = pair;
      }
    }
    found.push_back(best);
    std::map<std::vector<int32_t>, int64_t> next;
    for (const auto& [ids, count] : current) {
      std::vector<int32_t> merged;
      for (size_t i = 0; i < ids.size(); ++i) {
        const bool pair = i + 1 < ids.size() && std::pair(ids[i], ids[i + 1]) == best;
        merged.push_back(pair ? result : ids[i]);
        if (pair) ++i;
      }
      next[merged] += count;
    }
    current = next;
  }
  return found;
}

TEST(BpeTrainerTest, MergesAreThoseOfTheDefinition) {
  std::mt19937 random(11);
  std::string text;
  std::map<std::vector<int32_t>, int64_t> words;
  for (int i = 0; i < 400; ++i) {
    // Lower-case letters and marks have the ids of their bytes less '!'.
    std::string word(1 + random() % 9, 'a');
    for (char& c : word) c = "aaaabbcd"[random() % 8];
    std::vector<int32_t> ids;
    for (const char c : word) ids.push_back(c - '!');
    ++words[ids];
    text += word;
    // A mark splits the words without being part of one.
    text += "1";
    ++words[{'1' - '!'}];
  }
  BpeTrainer trainer;
  trainer.Add(text);
  const auto vocabulary = trainer.Train(257 + 80);
  ASSERT_TRUE(vocabulary.ok()) << vocabulary.status();
  std::vector<std::pair<int32_t, int32_t>> merges;
  for (const auto& merge : vocabulary->merges) merges.push_back({merge.left, merge.right});
  EXPECT_EQ(merges, ReferenceMerges(words, 80));
}

TEST(BpeTrainerTest, VocabularyIsBytesMergesAndEndOfDocument) {
  BpeTrainer trainer;
  trainer.Add("low low low lower lower newest");
  const auto vocabulary = trainer.Train(260);
  ASSERT_TRUE(vocabulary.ok()) << vocabulary.status();
  ASSERT_EQ(vocabulary->tokens.size(), 260);
  EXPECT_EQ(vocabulary->tokens[0], "!");
  EXPECT_EQ(vocabulary->tokens[188], std::string(1, '\0'));
  // "lo" and "ow" are there five times each; l (75) comes before o (78).
  EXPECT_EQ(vocabulary->tokens[256], "lo");
  EXPECT_EQ(vocabulary->tokens[257], "low");
  EXPECT_EQ(vocabulary->tokens[258], " low");
  EXPECT_EQ(vocabulary->end_of_document, 259);
  EXPECT_EQ(vocabulary->tokens[259], "<|endoftext|>");
}

TEST(BpeTrainerTest, RefusesSizesThatTheTextCannotGive) {
  BpeTrainer trainer;
  trainer.Add("abc");
  EXPECT_TRUE(trainer.Train(259).ok());
  const absl::Status too_large = trainer.Train(260).status();
  EXPECT_TRUE(absl::IsInvalidArgument(too_large));
  EXPECT_NE(too_large.ToString().find("259 tokens, and 260 were asked for"), std::string::npos)
      << too_large;
  EXPECT_TRUE(absl::IsInvalidArgument(trainer.Train(256).status()));
}

}  // namespace
}  // namespace fathom
