#include "runtime/data/bpe_files.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "runtime/data/bpe_tokenizer.h"
#include "runtime/data/bpe_trainer.h"

namespace fathom {
namespace {

using nlohmann::json;

constexpr char kText[] = "a hat that the cat had, the 17 cats' hats; \xc3\xa9t\xc3\xa9 \xff";

class BpeFilesTest : public testing::Test {
 protected:
  BpeFilesTest() {
    EXPECT_TRUE(files_.CreateDirectories(directory_).ok());
    BpeTrainer trainer;
    trainer.Add(kText);
    auto vocabulary = trainer.Train(257 + 12);
    EXPECT_TRUE(vocabulary.ok()) << vocabulary.status();
    vocabulary_ = *vocabulary;
    EXPECT_TRUE(WriteGpt2Files(files_, directory_, vocabulary_).ok());
    encoder_ = json::parse(*ReadFile(files_, directory_ + "/encoder.json"));
    merges_ = *ReadFile(files_, directory_ + "/vocab.bpe");
  }
  ~BpeFilesTest() override { EXPECT_TRUE(files_.RemoveAll(directory_).ok()); }

  void Write(const std::string& name, const std::string& text) {
    ASSERT_TRUE(WriteFileAtomically(files_, directory_ + "/" + name, text).ok());
  }

  // What reading says of it, which must be one InvalidArgument that names the path.
  std::string Refusal(const std::string& path) {
    const absl::Status status = Load(path).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_NE(status.message().find(directory_), std::string::npos) << status;
    return std::string(status.message());
  }

  absl::StatusOr<std::unique_ptr<BpeTokenizer>> Load(const std::string& path) {
    auto vocabulary = ReadBpeVocabulary(files_, path);
    if (!vocabulary.ok()) return vocabulary.status();
    return BpeTokenizer::Create(*std::move(vocabulary), path);
  }

  // tokenizer.json of the same vocabulary.
  json TokenizerJson() {
    json merges = json::array();
    const ByteAlphabet& alphabet = ByteAlphabet::Get();
    for (const auto& merge : vocabulary_.merges) {
      merges.push_back(alphabet.Write(vocabulary_.tokens[merge.left]) + " " +
                       alphabet.Write(vocabulary_.tokens[merge.right]));
    }
    return {{"added_tokens", {{{"id", 268}, {"content", "<|endoftext|>"}, {"special", true}}}},
            {"normalizer", nullptr},
            {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
            {"model",
             {{"type", "BPE"},
              {"dropout", nullptr},
              {"continuing_subword_prefix", ""},
              {"vocab", encoder_},
              {"merges", merges}}}};
  }

  std::string TiktokenFile() {
    std::string text;
    for (size_t id = 0; id + 1 < vocabulary_.tokens.size(); ++id) {
      absl::StrAppend(&text, absl::Base64Escape(vocabulary_.tokens[id]), " ", id, "\n");
    }
    return text;
  }

  FileSystem& files_ = PosixFileSystem();
  const std::string directory_ = TemporaryPath(testing::TempDir() + "/bpe_files");
  BpeVocabulary vocabulary_;
  json encoder_;
  std::string merges_;
};

std::vector<int32_t> Encode(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<int32_t> ids;
  tokenizer.Encode(text, &ids);
  return ids;
}

TEST_F(BpeFilesTest, TheThreeFormsOfAVocabularyGiveTheSameTokensAndHash) {
  Write("tokenizer.json", TokenizerJson().dump());
  Write("ranks", TiktokenFile());
  auto trained = BpeTokenizer::Create(vocabulary_, "trained");
  ASSERT_TRUE(trained.ok()) << trained.status();
  for (const std::string name : {"", "/tokenizer.json", "/ranks"}) {
    const auto tokenizer = Load(directory_ + name);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    EXPECT_EQ((*tokenizer)->vocabulary(), 269);
    EXPECT_EQ((*tokenizer)->end_of_document(), 268);
    EXPECT_EQ(Encode(**tokenizer, kText), Encode(**trained, kText));
    EXPECT_EQ((*tokenizer)->hash(), (*trained)->hash());
  }
  ASSERT_TRUE(files_.RemoveAll(directory_ + "/vocab.bpe").ok());
  EXPECT_EQ((*Load(directory_))->hash(), (*trained)->hash());  // tokenizer.json, in a directory
}

TEST_F(BpeFilesTest, WritesGpt2sFormat) {
  EXPECT_EQ(merges_.substr(0, 14), "#version: 0.2\n");
  EXPECT_EQ(encoder_["!"], 0);
  EXPECT_EQ(encoder_["\u0120"], 220);  // the space, as GPT-2 writes and numbers it
  EXPECT_EQ(encoder_["<|endoftext|>"], 268);
}

TEST_F(BpeFilesTest, MissingFiles) {
  EXPECT_TRUE(absl::IsNotFound(ReadBpeVocabulary(files_, directory_ + "/none").status()));
  ASSERT_TRUE(files_.RemoveAll(directory_ + "/encoder.json").ok());
  const absl::Status status = ReadBpeVocabulary(files_, directory_).status();
  EXPECT_TRUE(absl::IsNotFound(status));
  EXPECT_NE(status.message().find("encoder.json"), std::string::npos) << status;
  ASSERT_TRUE(files_.RemoveAll(directory_ + "/vocab.bpe").ok());
  EXPECT_TRUE(absl::IsNotFound(ReadBpeVocabulary(files_, directory_).status()));
}

TEST_F(BpeFilesTest, DamagedGpt2FilesAreRefused) {
  Write("encoder.json", encoder_.dump().substr(0, 1000));
  EXPECT_NE(Refusal(directory_).find("not valid JSON"), std::string::npos);
  Write("encoder.json", "[1]");
  EXPECT_NE(Refusal(directory_).find("not an object"), std::string::npos);

  const auto with = [this](const std::string& token, const json& id) {
    json changed = encoder_;
    changed[token] = id;
    Write("encoder.json", changed.dump());
    return Refusal(directory_);
  };
  EXPECT_NE(with("!", "0").find("the id of token \"!\" is \"0\""), std::string::npos);
  EXPECT_NE(with("!", -1).find("must be a whole number"), std::string::npos);
  EXPECT_NE(with("!", 1).find("\"!\" and \"\"\" have the same id, 1"), std::string::npos);
  EXPECT_NE(with("!", 300).find("token \"!\" has the id 300"), std::string::npos);

  json changed = encoder_;
  changed["the"] = changed["<|endoftext|>"];
  changed.erase("<|endoftext|>");
  Write("encoder.json", changed.dump());
  EXPECT_NE(Refusal(directory_).find("no end-of-document token"), std::string::npos);

  Write("encoder.json", encoder_.dump());
  Write("vocab.bpe", merges_ + "x y\n");
  EXPECT_NE(Refusal(directory_).find("\"x y\", needs the token \"xy\""), std::string::npos);
  Write("vocab.bpe", merges_ + "x\n");
  EXPECT_NE(Refusal(directory_).find("line 14, \"x\", is not two tokens"), std::string::npos);
  Write("vocab.bpe", merges_ + merges_.substr(14));
  EXPECT_NE(Refusal(directory_).find("same two tokens as an earlier one"), std::string::npos);
}

TEST_F(BpeFilesTest, TokenizerJsonNamesWhatIsNotSupported) {
  const std::string path = directory_ + "/tokenizer.json";
  const auto with = [&](const json& patch) {
    json changed = TokenizerJson();
    changed.merge_patch(patch);
    Write("tokenizer.json", changed.dump());
    return Refusal(path);
  };
  EXPECT_NE(with({{"normalizer", {{"type", "NFC"}}}}).find("{\"type\":\"NFC\"}"),
            std::string::npos);
  EXPECT_NE(with({{"pre_tokenizer", {{"type", "Metaspace"}}}}).find("Metaspace"),
            std::string::npos);
  EXPECT_NE(with({{"pre_tokenizer", {{"use_regex", false}}}}).find("use_regex"), std::string::npos);
  EXPECT_NE(with({{"model", {{"type", "Unigram"}}}}).find("Unigram"), std::string::npos);
  EXPECT_NE(with({{"model", {{"byte_fallback", true}}}}).find("byte_fallback"), std::string::npos);
  EXPECT_NE(with({{"model", {{"dropout", 0.1}}}}).find("dropout"), std::string::npos);
  EXPECT_NE(with({{"model", {{"merges", {"a"}}}}}).find("merge 1, \"a\""), std::string::npos);
  EXPECT_NE(with({{"model", {{"vocab", 3}}}}).find("not an object"), std::string::npos);
  EXPECT_NE(with({{"model", nullptr}}).find("no model"), std::string::npos);
  EXPECT_NE(with({{"added_tokens", {3}}}).find("has no content"), std::string::npos);
  EXPECT_NE(with({{"added_tokens", {{{"id", 5}, {"content", "<|endoftext|>"}}}}}).find("two ids"),
            std::string::npos);
}

TEST_F(BpeFilesTest, AddedTokensNeverComeOutOfTextAlsoWhereAMergeLeadsToThem) {
  json file = TokenizerJson();
  const std::string merged = ByteAlphabet::Get().Write(vocabulary_.tokens[256]);
  file["added_tokens"].push_back({{"id", 256}, {"content", merged}, {"special", false}});
  Write("tokenizer.json", file.dump());
  const auto tokenizer = Load(directory_ + "/tokenizer.json");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const std::vector<int32_t> ids = Encode(**tokenizer, kText);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), 256), 0);
  EXPECT_EQ(*(*tokenizer)->Decode(ids), kText);
}

// Where a damaged file is still a vocabulary, text survives the round trip through it.
TEST_F(BpeFilesTest, RandomDamageIsRefusedOrHarmless) {
  // It starts with a space, so that one that add_prefix_space asks for is there already.
  const std::string spaced = absl::StrCat(" ", kText);
  std::mt19937 random(23);
  const std::vector<std::pair<std::string, std::string>> forms = {
      {"encoder.json", encoder_.dump()},
      {"vocab.bpe", merges_},
      {"tokenizer.json", TokenizerJson().dump()},
      {"ranks", TiktokenFile()}};
  int refused = 0;
  for (int i = 0; i < 1200; ++i) {
    const auto& [name, good] = forms[i % 4];
    std::string text = good;
    for (int changes = 1 + random() % 3; changes > 0; --changes) {
      text[random() % text.size()] = "\"{}[]0 \n9a-\xff"[random() % 12];
    }
    if (i % 8 < 4) text.resize(text.size() - random() % 20);
    Write(name, text);
    const bool in_directory = name == "encoder.json" || name == "vocab.bpe";
    const auto tokenizer = Load(in_directory ? directory_ : directory_ + "/" + name);
    refused += !tokenizer.ok();
    if (tokenizer.ok()) {
      ASSERT_EQ(*(*tokenizer)->Decode(Encode(**tokenizer, spaced)), spaced) << text;
    }
    Write(name, good);
  }
  EXPECT_GT(refused, 600);
}

TEST_F(BpeFilesTest, TokenizerJsonSplits) {
  json file = TokenizerJson();
  const std::string regex =
      "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|"
      " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
  json split = {{"type", "Split"},
                {"pattern", {{"Regex", regex}}},
                {"behavior", "Isolated"},
                {"invert", false}};
  const json bytes = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  file["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", {split, bytes}}};
  Write("tokenizer.json", file.dump());
  auto vocabulary = ReadTokenizerJson(files_, directory_ + "/tokenizer.json");
  ASSERT_TRUE(vocabulary.ok()) << vocabulary.status();
  EXPECT_EQ(vocabulary->pattern, SplitPattern::kLlama3);
  EXPECT_FALSE(vocabulary->whole_pieces);

  file["model"]["ignore_merges"] = true;
  file["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", true}};
  Write("tokenizer.json", file.dump());
  vocabulary = ReadTokenizerJson(files_, directory_ + "/tokenizer.json");
  ASSERT_TRUE(vocabulary.ok()) << vocabulary.status();
  EXPECT_TRUE(vocabulary->add_prefix_space);
  EXPECT_TRUE(vocabulary->whole_pieces);

  split["pattern"]["Regex"] = "\\w+";
  file["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", {split, bytes}}};
  Write("tokenizer.json", file.dump());
  EXPECT_NE(Refusal(directory_ + "/tokenizer.json").find("w+"), std::string::npos);
}

TEST_F(BpeFilesTest, TiktokenFiles) {
  const std::string path = directory_ + "/ranks";
  const std::string good = TiktokenFile();
  Write("ranks", good + "?? 5\n");
  EXPECT_NE(Refusal(path).find("line 269"), std::string::npos);
  Write("ranks", good + "eHl6 5\n");
  EXPECT_NE(Refusal(path).find("rank 5 is there twice"), std::string::npos);
  Write("ranks", good + "eHl6 300\n");
  EXPECT_NE(Refusal(path).find("rank 300 is not among 0 to 269"), std::string::npos);
  Write("ranks", "");
  EXPECT_NE(Refusal(path).find("no tokens"), std::string::npos);
  Write("ranks", good.substr(good.find('\n') + 1));
  EXPECT_NE(Refusal(path).find("the byte 0x21"), std::string::npos);
  // One id left out is that of the end of a document.
  Write("ranks", good + "eHl6 269\n");
  const auto vocabulary = ReadTiktoken(files_, path);
  ASSERT_TRUE(vocabulary.ok()) << vocabulary.status();
  EXPECT_EQ(vocabulary->end_of_document, 268);
  EXPECT_EQ(vocabulary->tokens.size(), 270);
  EXPECT_EQ(vocabulary->tokens[269], "xyz");
}

}  // namespace
}  // namespace fathom
