#include "runtime/data/prepare.h"

#include <gtest/gtest.h>
#include <zlib.h>
#include <zstd.h>

#include <cstring>

#include "runtime/data/bpe_files.h"
#include "runtime/data/open_tokens.h"
#include "runtime/data/token_file.h"
#include "runtime/testing/failing_files.h"

namespace fathom {
namespace {

// One gzip member that holds `text`.
std::string Gzip(const std::string& text) {
  z_stream stream = {};
  EXPECT_EQ(deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string data(deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = text.size();
  stream.next_out = reinterpret_cast<Bytef*>(data.data());
  stream.avail_out = data.size();
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  data.resize(stream.total_out);
  deflateEnd(&stream);
  return data;
}

// One zstd frame with a checksum.
std::string Zstd(const std::string& text) {
  ZSTD_CCtx* context = ZSTD_createCCtx();
  ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, 1);
  std::string data(ZSTD_compressBound(text.size()), '\0');
  const size_t size = ZSTD_compress2(context, data.data(), data.size(), text.data(), text.size());
  EXPECT_FALSE(ZSTD_isError(size));
  ZSTD_freeCCtx(context);
  data.resize(size);
  return data;
}

std::string LongText(int64_t bytes) {
  std::string text;
  for (int64_t i = 0; text.size() < bytes; ++i) text += std::to_string(i * i) + "\n";
  text.resize(bytes);
  return text;
}

class PrepareTest : public ::testing::Test {
 protected:
  std::string Path(const std::string& name) { return JoinPath(directory_, name); }
  absl::StatusOr<PrepareStats> Prepare(const std::vector<std::string>& inputs,
                                       const PrepareOptions& options = {}) {
    auto tokenizer = MakeTokenizer("bytes");
    return PrepareTokens(PosixFileSystem(), inputs, **tokenizer, Path("out.tokens"), options);
  }
  // The documents of the output as text, without their end-of-document tokens.
  std::vector<std::string> Documents() {
    auto file = TokenFile::Open(PosixFileSystem(), Path("out"));
    EXPECT_TRUE(file.ok()) << file.status();
    if (!file.ok()) return {};
    EXPECT_TRUE((*file)->Verify().ok());
    std::vector<std::string> documents;
    int64_t begin = 0;
    for (int64_t i = 0; i < (*file)->documents(); ++i) {
      std::vector<int32_t> tokens((*file)->DocumentEnd(i) - begin);
      (*file)->Read(begin, tokens.size(), tokens.data());
      EXPECT_EQ(tokens.back(), 256);
      tokens.pop_back();
      documents.push_back(std::string(tokens.begin(), tokens.end()));
      begin = (*file)->DocumentEnd(i);
    }
    return documents;
  }

  std::string directory_ = NewTestDirectory();
};

TEST_F(PrepareTest, OneDocumentPerInput) {
  WriteTestFile(Path("a"), "one\n\xff");
  WriteTestFile(Path("empty"), "");
  WriteTestFile(Path("b.gz"), Gzip("two"));
  auto stats = Prepare({Path("a"), Path("empty"), Path("b.gz")});
  ASSERT_TRUE(stats.ok()) << stats.status();
  EXPECT_EQ(Documents(), (std::vector<std::string>{"one\n\xff", "", "two"}));
  EXPECT_EQ(stats->text_bytes, 8);
  EXPECT_EQ(stats->tokens, 11);
  EXPECT_EQ(stats->documents, 3);
  EXPECT_EQ(stats->checksum, (*TokenFile::Open(PosixFileSystem(), Path("out")))->tokens_checksum());
}

TEST_F(PrepareTest, GzipOfManyMembersAndPieces) {
  const std::string first = LongText(3 << 20), second = LongText(1000);
  WriteTestFile(Path("x"), Gzip(first) + Gzip("") + Gzip(second) + std::string(512, '\0'));
  int64_t calls = 0, last = 0;
  PrepareOptions options;
  options.progress = [&](const PrepareStats& stats) {
    ++calls;
    EXPECT_GE(stats.text_bytes, last);
    last = stats.text_bytes;
  };
  ASSERT_TRUE(Prepare({Path("x")}, options).ok());
  EXPECT_EQ(Documents(), std::vector<std::string>{first + second});
  EXPECT_GE(calls, 4);
  EXPECT_EQ(last, first.size() + second.size());
}

TEST_F(PrepareTest, ByteRanges) {
  const std::string text = LongText((2 << 20) + 100);
  WriteTestFile(Path("plain"), text);
  WriteTestFile(Path("gzip"), Gzip(text));
  for (const char* name : {"plain", "gzip"}) {
    for (const auto& [begin, end] : std::vector<std::pair<int64_t, int64_t>>{
             {0, 10}, {(1 << 20) - 1, (1 << 20) + 1}, {5, 2 << 20}, {2 << 20, 1 << 30}, {7, 7}}) {
      PrepareOptions options;
      options.begin_byte = begin;
      options.end_byte = end;
      ASSERT_TRUE(Prepare({Path(name)}, options).ok());
      EXPECT_EQ(Documents(), std::vector<std::string>{text.substr(begin, end - begin)});
    }
  }
}

TEST_F(PrepareTest, DamagedGzipNamesTheFile) {
  const std::string data = Gzip(LongText(300));
  for (size_t size = 2; size < data.size(); ++size) {
    WriteTestFile(Path("x.gz"), data.substr(0, size));
    const absl::Status status = Prepare({Path("x.gz")}).status();
    ASSERT_TRUE(absl::IsDataLoss(status)) << size;
    EXPECT_NE(status.ToString().find(Path("x.gz") + " is truncated"), std::string::npos) << status;
  }
  for (size_t byte = 10; byte < data.size(); ++byte) {
    std::string damaged = data;
    damaged[byte] ^= 0x55;
    WriteTestFile(Path("x.gz"), damaged);
    EXPECT_TRUE(absl::IsDataLoss(Prepare({Path("x.gz")}).status())) << byte;
  }
  WriteTestFile(Path("x.gz"), data + "tail");
  EXPECT_TRUE(absl::IsDataLoss(Prepare({Path("x.gz")}).status()));
  WriteTestFile(Path("x.gz"), data + std::string(1, '\0') + Gzip("more"));
  EXPECT_TRUE(absl::IsDataLoss(Prepare({Path("x.gz")}).status()));
  EXPECT_EQ(PosixFileSystem().List(directory_)->size(), 1);  // nothing of the outputs
}

TEST_F(PrepareTest, ErrorsKeepTheOlderFile) {
  WriteTestFile(Path("a"), "text");
  ASSERT_TRUE(Prepare({Path("a")}).ok());
  const absl::Status status = Prepare({Path("a"), Path("missing")}).status();
  EXPECT_TRUE(absl::IsNotFound(status));
  EXPECT_NE(status.ToString().find(Path("missing")), std::string::npos);
  EXPECT_EQ(Documents(), std::vector<std::string>{"text"});
  EXPECT_FALSE(Prepare({}).ok());
  EXPECT_FALSE(Prepare({directory_}).ok());
}

TEST_F(PrepareTest, ZstdOfManyFrames) {
  const std::string first = LongText(3 << 20), second = LongText(1000);
  const std::string skippable("\x50\x2a\x4d\x18\x03\0\0\0abc", 11);
  const std::string data = Zstd(first) + skippable + Zstd("") + Zstd(second);
  for (const std::string& front : {std::string(), skippable}) {
    WriteTestFile(Path("x"), front + data);
    const auto stats = Prepare({Path("x")});
    ASSERT_TRUE(stats.ok()) << stats.status();
    EXPECT_EQ(Documents(), std::vector<std::string>{first + second});
    EXPECT_EQ(stats->stored_bytes, stats->stored_total);
  }
}

TEST_F(PrepareTest, DamagedZstdNamesTheFile) {
  const std::string data = Zstd(LongText(300));
  for (size_t size = 4; size < data.size(); ++size) {
    WriteTestFile(Path("x"), data.substr(0, size));
    const absl::Status status = Prepare({Path("x")}).status();
    ASSERT_TRUE(absl::IsDataLoss(status)) << size;
    EXPECT_NE(status.ToString().find(Path("x") + " is truncated"), std::string::npos) << status;
  }
  for (size_t byte = 4; byte < data.size(); ++byte) {
    std::string damaged = data;
    damaged[byte] ^= 0x55;
    WriteTestFile(Path("x"), damaged);
    EXPECT_TRUE(absl::IsDataLoss(Prepare({Path("x")}).status())) << byte;
  }
  EXPECT_EQ(PosixFileSystem().List(directory_)->size(), 1);
}

TEST_F(PrepareTest, JsonLines) {
  const std::string lines =
      "{\"text\":\"one\",\"id\":1}\n \r\n{\"id\":2,\"text\":\"\"}\r\n"
      "{\"text\":\"a\\nb\\u00e9\\ud83d\\ude00\"}\n\n{\"text\":[104,105]}\n"
      "{\"text\":[]}\n{\"text\":[33,256]}";  // the last line is not ended
  WriteTestFile(Path("a.jsonl"), lines);
  WriteTestFile(Path("b.json.gz"), Gzip(lines));
  WriteTestFile(Path("c.ndjson.zst"), Zstd(lines));
  WriteTestFile(Path("plain"), lines);
  const std::vector<std::string> expected = {"one", "", "a\nb\u00e9\U0001f600", "hi", "", "!"};
  for (const char* name : {"a.jsonl", "b.json.gz", "c.ndjson.zst"}) {
    const auto stats = Prepare({Path(name)});
    ASSERT_TRUE(stats.ok()) << stats.status();
    EXPECT_EQ(Documents(), expected) << name;
    EXPECT_EQ(stats->documents, 6);
  }
  ASSERT_TRUE(Prepare({Path("plain")}).ok());
  EXPECT_EQ(Documents(), std::vector<std::string>{lines});
  PrepareOptions options;
  options.json_lines = true;
  ASSERT_TRUE(Prepare({Path("plain")}, options).ok());
  EXPECT_EQ(Documents(), expected);
}

TEST_F(PrepareTest, BadJsonLinesAreNamed) {
  const std::pair<const char*, const char*> cases[] = {
      {"{\"text\":\"no end", "not valid JSON"},
      {"{\"text\":\"a\"} {}", "not valid JSON"},
      {"{\"text\":\"\xff\"}", "not valid JSON"},
      {"[1,2]", "not a JSON object"},
      {"{\"other\":\"a\"}", "has no field \"text\""},
      {"{\"text\":7}", "neither a string nor an array"},
      {"{\"text\":[1,\"a\"]}", "entry 1 of the array \"text\" is no whole number"},
      {"{\"text\":[1.5]}", "entry 0 of"},
      {"{\"text\":[1,257]}", "token id 257 is outside"},
      {"{\"text\":[-1]}", "token id -1 is outside"}};
  for (const int threads : {1, 3}) {
    for (const auto& [line, message] : cases) {
      WriteTestFile(Path("x.jsonl"), std::string("{\"text\":\"a\"}\n\n") + line + "\n{}\n");
      PrepareOptions options;
      options.threads = threads;
      const absl::Status status = Prepare({Path("x.jsonl")}, options).status();
      EXPECT_FALSE(status.ok()) << line;
      EXPECT_NE(status.ToString().find(Path("x.jsonl") + ", line 3: "), std::string::npos)
          << status;
      EXPECT_NE(status.ToString().find(message), std::string::npos) << status;
    }
  }
  WriteTestFile(Path("x.jsonl"), "\n");
  EXPECT_TRUE(absl::IsInvalidArgument(Prepare({Path("x.jsonl")}).status()));
  EXPECT_EQ(PosixFileSystem().List(directory_)->size(), 1);
}

TEST_F(PrepareTest, LineNumbersGoOnAcrossParts) {
  std::string lines;
  int64_t count = 0;
  for (; lines.size() < (5 << 19); ++count) {
    lines += "{\"text\":\"" + std::string(count % 1000, 'x') + "\"}\n";
  }
  WriteTestFile(Path("x.jsonl"), lines + "nonsense\n");
  const absl::Status status = Prepare({Path("x.jsonl")}).status();
  EXPECT_NE(status.ToString().find("line " + std::to_string(count + 1) + ":"), std::string::npos)
      << status;
}

// Random words, spaces and line ends, some of them long.
std::string Prose(int64_t bytes, uint32_t seed) {
  std::string text;
  const auto random = [&seed] { return (seed = seed * 1664525u + 1013904223u) >> 16; };
  while (text.size() < bytes) {
    text.append(1 + random() % 9, 'a' + random() % 26);
    text += random() % 10 == 0 ? "\n\n" : random() % 9 == 0 ? ".  " : " ";
  }
  text.append(bytes / 10, 'z');
  return text + std::string(bytes / 10, ' ') + "end";
}

class PrepareBpeTest : public PrepareTest {
 protected:
  void SetUp() override {
    WriteTestFile(Path("train"), Prose(20000, 1));
    auto vocabulary = TrainVocabulary(PosixFileSystem(), {Path("train")}, 400, {});
    ASSERT_TRUE(vocabulary.ok()) << vocabulary.status();
    ASSERT_TRUE(PosixFileSystem().CreateDirectories(Path("bpe")).ok());
    ASSERT_TRUE(WriteGpt2Files(PosixFileSystem(), Path("bpe"), *vocabulary).ok());
    auto tokenizer = MakeTokenizer(Path("bpe"));
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    tokenizer_ = *std::move(tokenizer);
  }
  std::vector<int32_t> Tokens(const std::string& path) {
    auto file = OpenTokens(PosixFileSystem(), path);
    EXPECT_TRUE(file.ok()) << file.status();
    std::vector<int32_t> tokens((*file)->tokens());
    (*file)->Read(0, tokens.size(), tokens.data());
    return tokens;
  }
  std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_F(PrepareBpeTest, CutsDoNotChangeTokens) {
  const std::string text = Prose(3 << 20, 2);
  WriteTestFile(Path("text"), text);
  std::vector<int32_t> expected;
  tokenizer_->Encode(text, &expected);
  expected.push_back(tokenizer_->end_of_document());
  ASSERT_TRUE(
      PrepareTokens(PosixFileSystem(), {Path("text")}, *tokenizer_, Path("out.tokens"), {}).ok());
  EXPECT_TRUE(Tokens(Path("out")) == expected);
}

TEST_F(PrepareBpeTest, OutputDoesNotDependOnThreads) {
  std::string lines;
  for (int i = 0; lines.size() < (3 << 19); ++i) {
    std::string text = Prose(i % 3000, i);
    for (char& c : text) c = c == '\n' ? '.' : c;
    lines += "{\"text\":\"" + text + "\"}\n";
  }
  WriteTestFile(Path("a.jsonl"), lines);
  WriteTestFile(Path("b"), Prose(3 << 19, 3));
  WriteTestFile(Path("c"), "");
  for (const TokenFormat format : {TokenFormat::kFathom, TokenFormat::kMegatron}) {
    std::vector<std::string> outputs;
    for (const int threads : {1, 2, 5}) {
      PrepareOptions options;
      options.threads = threads;
      options.format = format;
      const auto stats =
          PrepareTokens(PosixFileSystem(), {Path("a.jsonl"), Path("b"), Path("c"), Path("a.jsonl")},
                        *tokenizer_, Path("out"), options);
      ASSERT_TRUE(stats.ok()) << stats.status();
      std::string bytes;
      for (const char* extension : {"", ".bin", ".idx"}) {
        const std::string path = Path("out") + extension;
        if (PosixFileSystem().Exists(path)) bytes += *ReadFile(PosixFileSystem(), path);
      }
      outputs.push_back(bytes);
      ASSERT_TRUE(PosixFileSystem().RemoveAll(Path("out")).ok());
    }
    EXPECT_TRUE(outputs[1] == outputs[0]);
    EXPECT_TRUE(outputs[2] == outputs[0]);
  }
}

TEST_F(PrepareBpeTest, TrainingTakesTextOnly) {
  WriteTestFile(Path("x.jsonl"), "{\"text\":[1]}\n");
  EXPECT_TRUE(absl::IsInvalidArgument(
      TrainVocabulary(PosixFileSystem(), {Path("x.jsonl")}, 300, {}).status()));
}

}  // namespace
}  // namespace fathom
